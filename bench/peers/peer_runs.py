"""Runs the programs of this folder if their systems are installed, or else says why not.

A peer lives in its own virtual environment; an environment variable names that environment's
Python. Its program prints one JSON object as its last line. If a peer is missing or fails, its
ratio is empty and `described` has a sentence about it.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.benchmark import Fields, progress
from bench.events import repeated_files
from bench.page_views import Work
from ftdash.supervision.java import environment as java_environment

PROGRAMS = Path(__file__).parent
PROBE_TIMEOUT_S, RUN_TIMEOUT_S = 60.0, 900.0
TAIL_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Peer:
    """`rounds` is how often it reads the events, so that it runs for at least ten seconds."""

    name: str
    program: str
    package: str
    version: str  # the beginning of the version that it must have
    variable: str
    rounds: dict[str, int]  # by key


PEERS = (
    Peer(
        "flink",
        "flink_sql.py",
        "apache-flink",
        "2.3.",
        "FTDASH_BENCH_FLINK_PYTHON",
        {"app_id": 2, "user_id": 1},
    ),
    Peer(
        "structured",
        "structured_streaming.py",
        "pyspark",
        "4.",
        "FTDASH_BENCH_STRUCTURED_PYTHON",
        {"app_id": 2, "user_id": 1},
    ),
    Peer(
        "pathway",
        "pathway_count.py",
        "pathway",
        "0.33.",
        "FTDASH_BENCH_PATHWAY_PYTHON",
        {"app_id": 2, "user_id": 1},
    ),
)


@dataclass(frozen=True, slots=True)
class PeerRun:
    records_per_s: float
    checkpoints: int


@dataclass(slots=True)
class PeerRuns:
    """The measurements of the peers, and the reasons why some measured nothing."""

    peers: dict[str, tuple[Peer, str]] = field(default_factory=dict)  # with its Python, by name
    versions: dict[str, str] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[PeerRun]] = field(default_factory=dict)

    @classmethod
    def installed(cls, peers: Sequence[Peer]) -> "PeerRuns":
        found = cls()
        for peer in peers:
            python = os.environ.get(peer.variable) or sys.executable
            version = version_in(python, peer.package)
            if version.startswith(peer.version):
                found.peers[peer.name], found.versions[peer.name] = (peer, python), version
            else:
                found.why_not[peer.name] = why_missing(peer, version)
                progress(found.why_not[peer.name])
        return found

    def run_all(self, work: Work) -> None:
        """Runs each peer once; a peer that fails does not run again."""
        for name, (peer, python) in list(self.peers.items()):
            try:
                run = _run(peer, python, work)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                self.why_not[name] = f"{peer.package} failed: {error}"
                del self.peers[name]
                progress(self.why_not[name])
            else:
                self.runs.setdefault(name, []).append(run)
                progress(f"{name}: {run.records_per_s:,.0f} records/s")

    def ratios(self, rates: Sequence[float]) -> Fields:
        """Returns our rate over theirs, the median of pairs; None if the peer did not run."""
        found: Fields = {}
        for peer in PEERS:
            theirs = self.runs.get(peer.name, [])
            pairs = [rate / run.records_per_s for rate, run in zip(rates, theirs, strict=False)]
            found[f"{peer.name}_ratio"] = round(statistics.median(pairs), 2) if pairs else None
        return found

    def described(self) -> Fields:
        """Returns each peer's version and figures, or the sentence that says why it has none."""
        measured = {
            name: {
                "version": self.versions[name],
                "records_per_s": round(statistics.median(run.records_per_s for run in runs)),
                "checkpoints": min(run.checkpoints for run in runs),
            }
            for name, runs in self.runs.items()
        }
        return {**measured, **self.why_not}


NO_PEERS = PeerRuns(why_not={peer.name: "not asked for (--with-peers)" for peer in PEERS})


def why_missing(peer: Peer, version: str) -> str:
    found = f"is version {version}" if version else "is not installed"
    wanted = f"{peer.package}=={peer.version}*"
    return (
        f"not measured: {peer.package} {found} in the Python that {peer.variable} names, or in this"
        f" one; make a virtual environment with {wanted} and name its Python there."
    )


def version_in(python: str, package: str) -> str:
    """Returns an empty text if the package is not installed there."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        ended = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def _run(peer: Peer, python: str, work: Work) -> PeerRun:
    """Raises RuntimeError with the program's last words."""
    rounds = peer.rounds[work.key]
    with (
        repeated_files(work.directory, rounds) as directory,
        tempfile.TemporaryDirectory(prefix="ftdash-peer-") as scratch,
    ):
        program = str(PROGRAMS / peer.program)
        words = [python, program, str(directory), work.key, work.backend, scratch]
        status, said, complaints = run_program(words, Path(scratch))
    if status:
        raise RuntimeError(complaints.strip()[-TAIL_CHARACTERS:])
    figures = json.loads(said.splitlines()[-1])
    return PeerRun(rounds * work.events / figures["seconds"], figures["checkpoints"])


def run_program(words: Sequence[str], scratch: Path) -> tuple[int, str, str]:
    """Returns the program's status, and its output and errors, which go to files in `scratch`.

    It kills remaining Java processes: Java sometimes hangs at its end, as Spark's with RocksDB did.
    """
    output, errors = scratch / "output.txt", scratch / "errors.txt"
    with output.open("wb") as said, errors.open("wb") as complaints:
        process = subprocess.Popen(
            words,
            env={**os.environ, **java_environment()},
            cwd=scratch,
            stdout=said,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            status = process.wait(RUN_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, output.read_text(), errors.read_text()
