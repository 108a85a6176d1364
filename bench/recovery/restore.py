"""How long does a run take to load a large state, against reading and digesting its bytes once?

A run fills keyed state with rows of 1,000 bytes of noise and stops with a native savepoint
(`--row-bytes`: larger rows fill a large state sooner). A new run with default settings, except for
the state backend, restores it. `seconds` counts from its first event to all subtasks running. That
includes the driver's verification of the point, the start of the slots, and the load. `ratio` is
the time that one process takes to read and digest the files one after the other, over `seconds`.
The page cache holds none of the files before either.

Expected: the driver reads and digests with four threads, so it takes as long as the disk; then the
slots read from the page cache, on two cores. RocksDB takes over links to the files after their
digest, about 0.2 s for each gigabyte. The hashmap copies every row once and enters its key, about
0.5 s. With a disk of 1 GB/s that is 1.3 s of reading and digesting against 1.2 and 1.5 s: a ratio
of 0.9 to 1.1. On another file system RocksDB's files are copied, which costs a write of each byte.
Slots are plain processes here, because the benchmark measures the restore, not how Spark starts.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.benchmark import Benchmark, Fields, at_least, progress
from pipelines.bus.inbox import submit
from pipelines.disk.files import RunningDigest, blocks_of
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import (
    Envelope,
    JobStatusChanged,
    MetricsSampled,
    RequestEnded,
    RunStarted,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus, RequestOutcome, SavepointFormat
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.wide_rows import KEEPER

BARS = (at_least("ratio", 0.7),)
MEGABYTES = {"rocksdb": 10_000, "hashmap": 2_000}
ROW_BYTES = 1_000
KEPT_SHARE = 0.8
"""The least share of the stored bytes that the state reports; RocksDB estimates its size."""

FILL_TIMEOUT_S = 3_600.0
STEP_TIMEOUT_S = 1_200.0
FLOW = {"pipeline": "wide_rows"}


@dataclass(frozen=True, slots=True)
class State:
    backend: str
    rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def parameters(self) -> dict[str, str]:
        return {"rows": str(self.rows), "row_bytes": str(self.row_bytes)}


@dataclass(frozen=True, slots=True)
class Restored:
    read_s: float  # mean of before and after
    seconds: float
    verified_s: float  # the part of `seconds` until the first attempt began

    def fields(self, backend: str, stored_bytes: int) -> Fields:
        return {
            f"{backend}_seconds": round(self.seconds, 2),
            f"{backend}_verified_s": round(self.verified_s, 2),
            f"{backend}_read_s": round(self.read_s, 2),
            f"{backend}_ratio": round(self.read_s / self.seconds, 3),
            f"{backend}_bytes": stored_bytes,
        }


def main() -> None:
    benchmark = Benchmark("restore", __doc__)
    for backend, megabytes in MEGABYTES.items():
        help_text = "of state; 0 leaves it out"
        benchmark.options.add_argument(
            f"--{backend}-mb", type=int, default=megabytes, help=help_text
        )
    benchmark.options.add_argument("--row-bytes", type=int, default=ROW_BYTES, help="of each row")
    options = benchmark.options.parse()
    wanted = {"rocksdb": options.rocksdb_mb, "hashmap": options.hashmap_mb}
    benchmark.report(measure(wanted, options.row_bytes), BARS)


def measure(megabytes: dict[str, int], row_bytes: int = ROW_BYTES) -> Fields:
    """`megabytes` is by backend; 0 leaves one out.

    Raises RuntimeError if rows are missing after a restore.
    """
    fields: Fields = {}
    read_s = seconds = 0.0
    for backend, size in megabytes.items():
        if not size:
            continue
        with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root:
            state = State(backend, size * 1_000_000 // row_bytes, row_bytes)
            point = _filled(Path(root), state)
            files = [path for path in point.rglob("*") if path.is_file()]
            found = _restored(Path(root), state, point, files)
            fields |= found.fields(backend, sum(path.stat().st_size for path in files))
        read_s, seconds = read_s + found.read_s, seconds + found.seconds
    return {**fields, "seconds": round(seconds, 2), "ratio": round(read_s / seconds, 3)}


def _filled(root: Path, state: State) -> Path:
    """Takes a native savepoint with the rows of `state`; returns its path."""
    settings = {"state.backend.type": state.backend, "execution.checkpointing.interval": "off"}
    began = time.monotonic()
    with hosted_run(root, state.parameters, settings=settings, spec_fields={**FLOW}) as run:
        run.wait_for(lambda _: _kept_rows(run) == state.rows, FILL_TIMEOUT_S)
        progress(
            f"{state.backend}: {state.rows:,} rows kept after {time.monotonic() - began:.0f} s"
        )
        stop = StopWithSavepoint(
            request_id=RequestId("stop"),
            requested_by="bench",
            reason="restore",
            format=SavepointFormat.NATIVE,
        )
        submit(run.directory, stop)
        run.wait_until_over(STEP_TIMEOUT_S)
        [ended] = [each.event for each in run.of(RequestEnded)]
    if not isinstance(ended, RequestEnded) or ended.outcome is not RequestOutcome.SUCCEEDED:
        raise RuntimeError(f"no savepoint was taken: {ended}")
    return Path(ended.path or "")


def _restored(root: Path, state: State, point: Path, files: list[Path]) -> Restored:
    before_s = _read(files)
    _forget(files)
    settings = {"state.backend.type": state.backend}
    restores = str(point)
    with hosted_run(
        root, state.parameters, settings=settings, spec_fields={**FLOW}, restore_from=restores
    ) as run:
        run.wait_for(lambda es: any(map(_is_running, es)), STEP_TIMEOUT_S)
        began_ms, begun_ms, running_ms = list(_moments(run.envelopes))
        run.wait_for(lambda _: _kept_bytes(run) >= KEPT_SHARE * state.nbytes, STEP_TIMEOUT_S)
    seconds = (running_ms - began_ms) / 1000
    after_s = _read(files)
    progress(
        f"{state.backend}: restored in {seconds:.1f} s; read in {before_s:.1f} and {after_s:.1f} s"
    )
    return Restored((before_s + after_s) / 2, seconds, (begun_ms - began_ms) / 1000)


def _read(files: list[Path]) -> float:
    """Measures how long it takes to read and digest the files, one after the other."""
    _forget(files)
    began = time.monotonic()
    for path in files:
        digest = RunningDigest()
        for block in blocks_of(path):
            digest.update(block)
        digest.hexdigest()
    return time.monotonic() - began


def _forget(files: list[Path]) -> None:
    """Takes the files out of the page cache; they are durable."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _moments(envelopes: list[Envelope]) -> Iterator[int]:
    """Yields the wall times of the driver's first event, its first attempt, and all running."""
    yield next(e.at_ms for e in envelopes if isinstance(e.event, RunStarted))
    initializing = JobStatus.INITIALIZING
    yield next(e.at_ms for e in envelopes if _status_of(e) is initializing)
    yield next(e.at_ms for e in envelopes if _is_running(e))


def _is_running(envelope: Envelope) -> bool:
    return _status_of(envelope) is JobStatus.RUNNING


def _status_of(envelope: Envelope) -> JobStatus | None:
    event = envelope.event
    return event.status if isinstance(event, JobStatusChanged) else None


def _kept_rows(run: StartedRun) -> int:
    newest = _newest_sample(run)
    return (
        sum(each.records_in for each in newest.subtasks if each.vertex == KEEPER) if newest else 0
    )


def _kept_bytes(run: StartedRun) -> int:
    newest = _newest_sample(run)
    return (
        sum(each.state_bytes for each in newest.subtasks if each.vertex == KEEPER) if newest else 0
    )


def _newest_sample(run: StartedRun) -> MetricsSampled | None:
    for envelope in reversed(run.poll()):
        if isinstance(envelope.event, MetricsSampled):
            return envelope.event
    return None


if __name__ == "__main__":
    main()
