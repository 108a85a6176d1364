"""How much memory do a snapshot and a restore of a large state take, next to the state itself?

Expected: a snapshot copies segments that are written to while it is read, at most all of them
once, and streams the rest, so at most twice the state; a restore reads a mapped file batch by
batch, and grows one column at a time. RocksDB holds a bounded part in memory, whatever the size.

`python -m tests.bench.state_memory` measures each phase in a process of its own, by the anonymous
memory of that process; mapped files belong to the page cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle
from pipelines.state.backend import StateBackend, TableDescriptor
from pipelines.state.hashmap import HashMapBackend
from pipelines.state.memory_share import SlotMemory
from pipelines.state.rocksdb import RocksDbSlot
from pipelines.state.working_directory import WorkingDirectory
from pipelines.storage.filesystem import FileSystemCheckpointStore

MAX_PARALLELISM = 128
GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
COLUMNS = 4
WIDE = TableDescriptor(
    name="wide",
    key=pa.schema([("id", pa.int64())]),
    value=pa.schema([(f"v{n}", pa.int64()) for n in range(COLUMNS)]),
    defaults={f"v{n}": 0 for n in range(COLUMNS)},
    key_group_by=("id",),
)
ROW_BYTES = 8 * (1 + COLUMNS)
BATCH_ROWS = 65_536
ROCKSDB_MEMORY_BYTES = 64 << 20
SAMPLE_S = 0.005


def fill(backend: StateBackend, rows: int) -> None:
    table = backend.table(WIDE)
    for start in range(0, rows, BATCH_ROWS):
        ids = np.arange(start, min(start + BATCH_ROWS, rows))
        numbers = table.rows_for(pa.record_batch([ids], schema=WIDE.key))
        for name in WIDE.value.names:
            table.write(name, numbers, ids)
        backend.settle()


def snapshot(backend: StateBackend, root: Path, rows: int) -> FileHandle:
    """Written on another thread, while every row is written to once."""
    [state] = backend.cut()
    store = FileSystemCheckpointStore([str(root)])
    written: list[FileHandle] = []

    def write() -> None:
        written.append(
            store.write_batches(str(root), "wide", state.schema, state.batches, open_format=False)
        )

    upload = threading.Thread(target=write)
    upload.start()
    fill(backend, rows)
    upload.join()
    return written[0]


def run_phase(name: str, phase: str, root: Path, rows: int) -> dict[str, int]:
    before = anonymous_bytes()
    with made(name, root) as backend:
        backend.table(WIDE)
        if phase == "snapshot":
            fill(backend, rows)
            held = anonymous_bytes() - before
            with PeakMemory() as peak:
                handle = snapshot(backend, root, rows)
            (root / "handle.json").write_bytes(msgspec.json.encode(handle))
        else:
            handle = msgspec.json.decode((root / "handle.json").read_bytes(), type=FileHandle)
            store = FileSystemCheckpointStore([str(root)])
            with PeakMemory() as peak:
                backend.restore("wide", store.read_batches(str(root), handle))
            held = anonymous_bytes() - before
        return {"held_bytes": held, "peak_bytes": peak.bytes - before}


@contextmanager
def made(name: str, root: Path) -> Iterator[StateBackend]:
    if name == "hashmap":
        yield HashMapBackend(GROUPS, MAX_PARALLELISM)
        return
    directory = WorkingDirectory(root / "local", "bench")
    backend = RocksDbSlot(directory, SlotMemory(ROCKSDB_MEMORY_BYTES))(GROUPS, MAX_PARALLELISM)
    yield backend
    backend.close()
    directory.close()


class PeakMemory:
    """Samples the anonymous memory of this process."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.is_set():
            self.bytes = max(self.bytes, anonymous_bytes())
            time.sleep(SAMPLE_S)


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this kernel does not tell the anonymous memory")


def measure(name: str, state_bytes: int) -> dict[str, float]:
    """Both phases, each in a child process; peaks as multiples of the state in memory.

    For RocksDB, whose memory is bounded, of the size of its rows.
    """
    rows = state_bytes // ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="ftdash-memory-") as root:
        phases = {phase: _child(name, phase, Path(root), rows) for phase in ("snapshot", "restore")}
    found = {}
    for phase, measured in phases.items():
        size = rows * ROW_BYTES if name == "rocksdb" else measured["held_bytes"]
        found[f"{name}_{phase}_ratio"] = round(measured["peak_bytes"] / size, 3)
        found[f"{name}_{phase}_peak_mb"] = measured["peak_bytes"] >> 20
    return found


def _child(name: str, phase: str, root: Path, rows: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.bench.state_memory", "--backend", name]
    command += ["--phase", phase, "--root", str(root), "--rows", str(rows)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=dict[str, int])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"))
    parser.add_argument("--phase", choices=("snapshot", "restore"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(run_phase(options.backend, options.phase, options.root, options.rows)))
        return
    found: dict[str, object] = {"benchmark": "state_memory", "megabytes": options.megabytes}
    for name in [options.backend] if options.backend else ["hashmap", "rocksdb"]:
        found |= measure(name, options.megabytes << 20)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
