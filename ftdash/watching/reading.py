"""Reads what a query leaves behind: its checkpoint directory and its event log. Writes nothing.

The engine knows the layout of a checkpoint and what may be wrong with it (`pipelines.structured`);
this module turns its answer into what is stored and shown. An event log is one file, or a directory
of rolled ones; plain or compressed with zstd; finished or still written. It is read in steps, each
from the line where the last one ended.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa

from ftdash.times import moment, moment_or_none
from ftdash.watching.progress import BatchFigures, Kind
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.run import scheme_of
from pipelines.storage.roots import StorageRoots
from pipelines.structured import doctor
from pipelines.structured.directory import read_query
from pipelines.structured.findings import Severity
from pipelines.structured.formats import LONG_MAX
from pipelines.structured.query import Batch, QueryDirectory
from pipelines.structured.recovery import recovery_points

ROOTS_VARIABLE = "FTDASH_WATCH_ROOTS"
POINTS_MAX = 200
FINDINGS_MAX = 100
RETAINED_BATCHES = 100
"""Spark's default of `spark.sql.streaming.minBatchesToRetain`."""

MOMENT_MAX_MS = 253_402_300_799_000
"""The end of the year 9999."""

LOG_EVENTS_MAX = 5_000
"""The most events in one step; the next step continues."""

LINE_BYTES_MAX = 16 << 20


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A retained batch. `problems` say why it cannot be restored; `kept_until_ms` is estimated."""

    batch_id: int
    committed_ms: int | None
    problems: list[str]
    longest_chain: int
    kept_until_ms: int | None

    @property
    def committed_at(self) -> datetime | None:
        return None if self.committed_ms is None else moment(self.committed_ms)

    @property
    def kept_until(self) -> datetime | None:
        return None if self.kept_until_ms is None else moment(self.kept_until_ms)


class FoundThing(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of the doctor."""

    kind: str
    severity: str
    text: str
    cost: str
    next_step: str
    batch_id: int | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One look into a checkpoint directory; `points` are newest first, at most `POINTS_MAX`."""

    query_id: str
    store: str
    size_bytes: int
    state_bytes: int
    file_count: int
    newest_planned: int | None
    newest_committed: int | None
    point_count: int
    points: list[Point]
    finding_count: int
    damage_count: int  # findings of severity error
    findings: list[FoundThing]

    @property
    def recommended(self) -> Point | None:
        """The newest point that is complete."""
        return next((each for each in self.points if not each.problems), None)


@dataclass(frozen=True, slots=True)
class DirectoryLook:
    """`batches` are the retained batches of the directory that were opened."""

    found: Found
    batches: list[BatchFigures]


def place_of(given: str) -> str:
    """Converts a place that a person copied from a Spark job: Spark's `s3a://` is `s3://` here."""
    return re.sub("^s3a://", "s3://", given.strip())


def check_place(location: str, roots: Sequence[str]) -> None:
    """Raises Rejected, with the next step, if the location is outside the roots."""
    try:
        StorageRoots(roots).check(location)
    except Rejected as refusal:
        known = ", ".join(roots) or "none yet"
        raise Rejected(
            f"{location} lies outside the directories that may be watched ({known}); add its parent"
            f" to {ROOTS_VARIABLE} on the server, and start the dashboard again."
        ) from refusal


def look_into(
    directory: str,
    roots: Sequence[str],
    *,
    output: str = "",
    trigger_interval_ms: int | None = None,
) -> DirectoryLook:
    """Raises Rejected if it is no checkpoint or outside the roots, Retryable if storage fails."""
    for place in filter(None, (directory, output)):
        check_place(place, roots)
    query = read_query(directory, roots, output=output)
    observed = doctor.Observed(
        now_ms=time.time_ns() // 1_000_000, trigger_interval_ms=trigger_interval_ms
    )
    findings = doctor.examine(query, observed)
    points = _points(query)
    found = Found(
        query_id=query.query_id,
        store=query.store.value,
        size_bytes=query.size_bytes,
        state_bytes=query.state_bytes,
        file_count=query.file_count,
        newest_planned=query.newest_planned,
        newest_committed=query.newest_committed,
        point_count=len(points),
        points=points[:POINTS_MAX],
        finding_count=len(findings),
        damage_count=sum(each.severity is Severity.ERROR for each in findings),
        findings=[
            FoundThing(
                kind=each.kind.value,
                severity=each.severity.value,
                text=each.text,
                cost=each.cost,
                next_step=each.next_step,
                batch_id=each.batch_id,
            )
            for each in findings[:FINDINGS_MAX]
        ],
    )
    return DirectoryLook(found, _batches(query))


def _points(query: QueryDirectory) -> list[Point]:
    """Returns points newest first. By default, Spark deletes one after a hundred newer batches."""
    found = recovery_points(query)
    times = [each.committed_ms for each in found if each.committed_ms is not None]
    gaps = [after - before for before, after in pairwise(times)]
    pace_ms = median(gaps) if gaps else None
    newest = found[-1].batch_id if found else 0
    return [
        Point(
            batch_id=each.batch_id,
            committed_ms=each.committed_ms,
            problems=list(each.problems[:5]),
            longest_chain=each.longest_chain,
            kept_until_ms=None
            if pace_ms is None
            else _possible(
                times[-1] + round(pace_ms * (each.batch_id + RETAINED_BATCHES - newest))
            ),
        )
        for each in reversed(found)
    ]


def _possible(epoch_ms: int) -> int | None:
    return epoch_ms if 0 < epoch_ms <= MOMENT_MAX_MS else None


def _batches(query: QueryDirectory) -> list[BatchFigures]:
    before: Batch | None = None
    found = []
    for each in query.batches:
        if each.is_committed and each.is_opened and each.planned_ms is not None:
            found.append(_figures(each, before))
        before = each
    return found


def _figures(batch: Batch, before: Batch | None) -> BatchFigures:
    """Rows are known only for sources whose offsets count them."""
    planned_ms, committed_ms = batch.planned_ms or 0, batch.committed_ms
    took_ms = None if committed_ms is None else max(0, committed_ms - planned_ms)
    sources = [_source(batch, before, index) for index in range(len(batch.sources))]
    rows = [each["rows"] for each in sources if each["rows"] is not None]
    watermark_ms = _possible(batch.watermark_ms or 0)
    return BatchFigures(
        batch_id=batch.batch_id,
        at=moment(planned_ms),
        duration_ms=took_ms,
        rows=min(sum(rows), LONG_MAX) if sources and len(rows) == len(sources) else None,
        input_rows_per_s=None,
        processed_rows_per_s=None,
        watermark=moment_or_none(watermark_ms),
        phases_ms={},
        operators=[],
        sources=sources,
        sink={},
    )


def _source(batch: Batch, before: Batch | None, index: int) -> dict[str, Any]:
    source = batch.sources[index]
    earlier = before.sources[index] if before and index < len(before.sources) else None
    rows = None
    if earlier is not None and source.positions and earlier.positions.keys():
        pairs = [(at, earlier.positions.get(name, 0)) for name, at in source.positions.items()]
        rows = sum(max(0, after - start) for after, start in pairs)
    return {
        "description": f"source {index}",
        "start": "",
        "end": "",
        "rows": rows,
        "input_rows_per_s": None,
        "processed_rows_per_s": None,
        "lag": None,
    }


_PREFIX = "org.apache.spark.sql.streaming.StreamingQueryListener$Query"
_KINDS = {
    f"{_PREFIX}StartedEvent": Kind.STARTED,
    f"{_PREFIX}ProgressEvent": Kind.PROGRESS,
    f"{_PREFIX}IdleEvent": Kind.IDLE,
    f"{_PREFIX}TerminatedEvent": Kind.TERMINATED,
}


@dataclass(frozen=True, slots=True)
class LogStep:
    """Events in the form in which a listener sends them, and the place of the next step."""

    events: list[dict[str, Any]]
    positions: dict[str, int]  # {file: lines read}
    has_more: bool


def read_log(event_log: str, roots: Sequence[str], positions: Mapping[str, int]) -> LogStep:
    """Reads on in an event log. Raises Rejected if it is outside the roots, or is no event log."""
    if scheme_of(event_log):
        raise Rejected(
            f"{event_log} is not a file of this server, and an event log is read only from there;"
            " leave it out, and add the listener to the job if you want its figures."
        )
    check_place(event_log, roots)
    place = StorageRoots(roots).directory(event_log)
    files = _log_files(place)
    if not files:
        raise Rejected(
            f"{event_log} holds no event log of Spark; give the file or the directory that"
            " spark.eventLog.dir has for this application."
        )
    events: list[dict[str, Any]] = []
    read = dict(positions)
    newest: dict[str, str] = {}
    for file in files:
        name = file.name.removesuffix(".inprogress")
        line_count = read.get(name, 0)
        for line in _lines(file, line_count):
            line_count += 1
            if b"StreamingQueryListener$Query" in line and (event := _event(line, newest)):
                events.append(event)
            if len(events) >= LOG_EVENTS_MAX:
                break
        read[name] = line_count
        if len(events) >= LOG_EVENTS_MAX:
            return LogStep(events, read, has_more=True)
    return LogStep(events, read, has_more=False)


def _log_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        return []
    named = [each for each in place.iterdir() if each.name.startswith("events_")]
    numbered = [each for each in named if each.name.split("_")[1].isdecimal()]
    return sorted(numbered, key=lambda each: int(each.name.split("_")[1]))


def _lines(file: Path, skipped: int) -> Iterator[bytes]:
    """Yields whole lines; the last one of a file in progress may be cut, and is left for later."""
    is_zstd = ".zstd" in file.name
    with file.open("rb") as raw:
        stream: Any = pa.input_stream(raw, compression="zstd" if is_zstd else None)
        rest, count = b"", 0
        while True:
            try:
                part = stream.read(1 << 20)
            except OSError:  # the last frame is still being written
                return
            if not part:
                return
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                count += 1
                if count > skipped:
                    yield line
            if len(rest) > LINE_BYTES_MAX:
                raise Rejected(f"{file} is no event log: a line has more than 16 MiB.")


def _event(line: bytes, newest: dict[str, str]) -> dict[str, Any] | None:
    """`newest` has the last time in each run, because the end of a run has no time of its own."""
    try:
        found = msgspec.json.decode(line)
    except UNDECODABLE:
        return None
    kind = _KINDS.get(str(found.get("Event"))) if isinstance(found, dict) else None
    if kind is None:
        return None
    if kind is Kind.PROGRESS:
        progress = found.get("progress")
        if isinstance(progress, dict):
            newest[str(progress.get("runId"))] = str(progress.get("timestamp"))
        return {"kind": kind.value, "progress": progress}
    run_id = str(found.get("runId"))
    at = found.get("timestamp") or newest.get(run_id) or datetime.now(UTC).isoformat()
    newest[run_id] = str(at)
    return {
        "kind": kind.value,
        "id": str(found.get("id")),
        "runId": run_id,
        "timestamp": at,
        "name": found.get("name"),
        "exception": found.get("exception"),
        "errorClass": found.get("errorClassOnException"),
    }
