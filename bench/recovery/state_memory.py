"""How much memory do a snapshot and a restore of a large state take, next to the state itself?

Expected: a snapshot copies segments that are written to while it is read, at most all of them
once, and streams the rest, so at most twice the state. A restore reads a mapped file batch by
batch, and grows one column at a time. RocksDB holds a bounded part in memory for any size.
"""

import subprocess
import sys
import tempfile

import msgspec

from bench.benchmark import Bar, Benchmark, Fields, at_most, progress
from bench.recovery.state_memory_phase import ROW_BYTES

BACKENDS = ("hashmap", "rocksdb")
PHASES = ("snapshot", "restore")
BARS: tuple[Bar, ...] = tuple(at_most(f"{b}_{p}_ratio", 2) for b in BACKENDS for p in PHASES)


def main() -> None:
    benchmark = Benchmark("state-memory", __doc__)
    benchmark.options.add_argument("--megabytes", type=int, default=1024, help="of rows")
    benchmark.options.add_argument("--backend", choices=BACKENDS, help="only this one")
    options = benchmark.options.parse()
    found: Fields = {"megabytes": options.megabytes}
    for name in [options.backend] if options.backend else BACKENDS:
        found |= measure(name, options.megabytes << 20)
        progress(f"{name}: {found}")
    benchmark.report(found, BARS)


def measure(name: str, state_bytes: int) -> dict[str, float]:
    """Measures both phases, each in a child process; peaks are multiples of the state in memory.

    For RocksDB, whose memory is bounded, they are multiples of the size of its rows.
    """
    rows = state_bytes // ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="ftdash-memory-") as root:
        phases = {phase: _child(name, phase, root, rows) for phase in PHASES}
    found = {}
    for phase, measured in phases.items():
        size = rows * ROW_BYTES if name == "rocksdb" else measured["held_bytes"]
        found[f"{name}_{phase}_ratio"] = round(measured["peak_bytes"] / size, 3)
        found[f"{name}_{phase}_peak_mb"] = measured["peak_bytes"] >> 20
        found[f"{name}_{phase}_held_mb"] = measured["held_bytes"] >> 20
        found[f"{name}_{phase}_s"] = round(measured["took_ms"] / 1000, 1)
    return found


def _child(name: str, phase: str, root: str, rows: int) -> dict[str, int]:
    program = [sys.executable, "-m", "bench.recovery.state_memory_phase"]
    command = [*program, name, phase, root, str(rows)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=dict[str, int])


if __name__ == "__main__":
    main()
