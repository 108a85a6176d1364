"""Nexmark's queries on Flink SQL and Structured Streaming, if these are installed.

Each lives in its own virtual environment; an environment variable names that environment's Python.
Flink needs jars that it does not ship to read Parquet. FTDASH_BENCH_FLINK_JARS names the directory
of `flink-sql-parquet`; the jars of Hadoop are those of our pyspark.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
from nexmark.joins import side_input

from bench.benchmark import Fields, progress
from bench.peers.peer_runs import (
    PROGRAMS,
    TAIL_CHARACTERS,
    Peer,
    run_program,
    version_in,
    why_missing,
)

FLINK = Peer(
    "flink", "flink_nexmark.py", "apache-flink", "2.3.", "FTDASH_BENCH_FLINK_PYTHON", rounds={}
)
STRUCTURED = Peer(
    "structured",
    "structured_nexmark.py",
    "pyspark",
    "4.",
    "FTDASH_BENCH_STRUCTURED_PYTHON",
    rounds={},
)
JARS = "FTDASH_BENCH_FLINK_JARS"
PARQUET_JAR = "flink-sql-parquet-2.3*.jar"
HADOOP_JARS = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")
INEXPRESSIBLE = "Structured Streaming cannot express this query."


class NotMeasured(Exception):
    """A peer is missing or has failed; the text says why, and the next step."""


@dataclass(frozen=True, slots=True)
class PeerMeasured:
    events_per_s: float
    cpu_s: float
    checkpoints: int
    checkpoint_ms_p99: float | None
    state_bytes: int
    peak_bytes: int

    def described(self, cores: int) -> Fields:
        return {
            "events_per_s": round(self.events_per_s),
            "events_per_s_per_core": round(self.events_per_s / cores),
            "cpu_s": round(self.cpu_s, 2),
            "checkpoints": self.checkpoints,
            "checkpoint_ms_p99": self.checkpoint_ms_p99,
            "state_bytes": self.state_bytes,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True)
class Flink:
    """Runs queries on Flink. Raises NotMeasured if it is not installed, or fails."""

    directory: Path  # of the events
    events: int

    def run(self, query: str, backend: str, *, mini_batch: bool) -> PeerMeasured:
        said = self._said(query, backend, mini_batch=mini_batch, prints=False)
        figures = json.loads(said.splitlines()[-1])
        progress(
            f"{query} on Flink SQL: {figures['seconds']:.1f} s, {figures['cpu_s']:.1f} s of cores"
        )
        return _measured(figures, self.events)

    def printed(self, query: str) -> str:
        """Returns everything that Flink prints, which includes the query's changelog."""
        return self._said(query, "hashmap", mini_batch=False, prints=True)

    def _said(self, query: str, backend: str, *, mini_batch: bool, prints: bool) -> str:
        python = _python_of(FLINK)
        side = self.directory / "side"
        side.mkdir(exist_ok=True)
        pq.write_table(side_input(), side / "side.parquet")
        options = {
            "query": query,
            "directory": str(self.directory),
            "backend": backend,
            "mini_batch": mini_batch,
            "jars": [str(jar) for jar in _jars()],
            "prints": prints,
        }
        return _said(python, FLINK, options)


@dataclass(frozen=True, slots=True)
class Structured:
    """Runs queries on Structured Streaming.

    Raises NotMeasured if it is not installed, cannot express the query, or fails.
    """

    directory: Path
    events: int

    def run(self, query: str, backend: str) -> PeerMeasured:
        options = {"query": query, "directory": str(self.directory), "backend": backend}
        said = _said(_python_of(STRUCTURED), STRUCTURED, options)
        figures = json.loads(said.splitlines()[-1])
        if figures["seconds"] is None:
            raise NotMeasured(INEXPRESSIBLE)
        progress(f"{query} on Structured Streaming: {figures['seconds']:.1f} s")
        return _measured(figures, self.events)


def _measured(figures: dict[str, float], events: int) -> PeerMeasured:
    return PeerMeasured(
        events / figures["seconds"],
        figures["cpu_s"],
        int(figures["checkpoints"]),
        figures["checkpoint_ms_p99"],
        int(figures["state_bytes"]),
        int(figures["peak_bytes"]),
    )


def _said(python: str, peer: Peer, options: dict[str, object]) -> str:
    with tempfile.TemporaryDirectory(prefix="ftdash-peer-") as scratch:
        words = json.dumps({**options, "scratch": scratch})
        status, said, complaints = run_program(
            [python, str(PROGRAMS / peer.program), words], Path(scratch)
        )
    if status:
        raise NotMeasured(f"{peer.package} failed: {complaints.strip()[-TAIL_CHARACTERS:]}")
    return said


def _python_of(peer: Peer) -> str:
    python = os.environ.get(peer.variable) or sys.executable
    version = version_in(python, peer.package)
    if not version.startswith(peer.version):
        raise NotMeasured(why_missing(peer, version))
    return python


def _jars() -> list[Path]:
    parquet = sorted(Path(os.environ.get(JARS, ".")).glob(PARQUET_JAR))
    if not parquet:
        raise NotMeasured(
            f"not measured: there is no {PARQUET_JAR} in the directory that {JARS} names; get"
            " org.apache.flink:flink-sql-parquet:2.3.0 with Maven and name its directory there."
        )
    of_spark = Path(pyspark.__file__).parent / "jars"
    return [parquet[-1], *(jar for name in HADOOP_JARS for jar in of_spark.glob(name))]
