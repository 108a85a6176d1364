"""Spark's reports on a Structured Streaming query, as typed values.

Pure. Reads the JSON of `StreamingQueryProgress` as the listener sends it and as the event log
stores it; fields that Spark adds later are ignored. Numbers that are unknown are None, never zero.
What is kept of a batch is bounded, so that no query fills the database: the figures of single
partitions are left out, and long texts are cut.

Source: Spark 3.5 to 4.3, `org.apache.spark.sql.streaming.StreamingQueryProgress`.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pipelines.domain.texts import storable

AHEAD_MAX = timedelta(days=1)
"""A clock that is further ahead is wrong, and its events would hide all later ones."""

PARTS_MAX = 50
METRICS_MAX = 60
TEXT_LENGTH_MAX = 500
OFFSET_LENGTH_MAX = 4_000
MESSAGE_LENGTH_MAX = 20_000
PROBLEMS_MAX = 5
TOTAL = "total"
"""The key of the sum among lags; no partition is named without a slash."""

_LONG_MAX = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=_LONG_MAX)]
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=1_000_000)]


class Kind(StrEnum):
    STARTED = "started"
    PROGRESS = "progress"
    IDLE = "idle"
    TERMINATED = "terminated"


class Operator(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """`memory_used_bytes` is Spark's name for the bytes of state in all partitions."""

    operator_name: Text = ""
    num_rows_total: int | None = None
    num_rows_updated: int | None = None
    num_rows_removed: int | None = None
    memory_used_bytes: int | None = None
    num_rows_dropped_by_watermark: int | None = None
    num_shuffle_partitions: int | None = None
    commit_time_ms: int | None = None
    custom_metrics: dict[str, Any] = {}


class Source(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Offsets have the source's own form: an object of topics and partitions, a number, a text."""

    description: Text = ""
    start_offset: Any = None
    end_offset: Any = None
    latest_offset: Any = None
    num_input_rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None


class Sink(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    description: Text = ""
    num_output_rows: int | None = None


class Progress(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One batch; `timestamp` is when its trigger started."""

    id: Id
    run_id: Id
    timestamp: datetime
    batch_id: Count
    name: Text | None = None
    batch_duration: int | None = None
    num_input_rows: Count | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    duration_ms: dict[str, int] = {}
    event_time: dict[str, str] = {}
    state_operators: list[Operator] = []
    sources: list[Source] = []
    sink: Sink | None = None


class Event(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One report. `progress` belongs to that kind; the others have `id`, `runId`, `timestamp`."""

    kind: Kind
    id: Id | None = None
    run_id: Id | None = None
    timestamp: datetime | None = None
    name: Text | None = None
    exception: Text | None = None
    error_class: Text | None = None
    progress: Progress | None = None


class BatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One batch as it is stored and shown. Durations in ms; `phases_ms` in Spark's names."""

    batch_id: int
    at: datetime
    duration_ms: int | None
    rows: int | None
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    watermark: datetime | None
    phases_ms: dict[str, int]
    operators: list[dict[str, Any]]
    sources: list[dict[str, Any]]
    sink: dict[str, Any]

    @property
    def ended_at(self) -> datetime:
        return self.at + timedelta(milliseconds=self.duration_ms or 0)


class QueryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was understood. `batch` is set only for progress."""

    kind: Kind
    query_id: str
    run_id: str
    at: datetime
    name: str
    exception: str | None = None
    error_class: str = ""
    batch: BatchFigures | None = None


def understood(events: Sequence[Any], now: datetime) -> tuple[list[QueryEvent], list[str]]:
    """Returns what can be stored, and at most `PROBLEMS_MAX` sentences about the rest.

    `events` are values of JSON. A malformed one does not affect the others.
    """
    found: list[QueryEvent] = []
    problems: list[str] = []
    for index, each in enumerate(events):
        try:
            found.append(_query_event(msgspec.convert(_storable(each), Event), now))
        except (msgspec.ValidationError, ValueError, OverflowError) as problem:
            problems.append(f"events.{index}: {str(problem)[:TEXT_LENGTH_MAX]}")
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [f"{len(problems) - PROBLEMS_MAX} more events are malformed."]
    return found, problems


def _storable(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case dict():
            return {_storable(key): _storable(each) for key, each in value.items()}
        case list():
            return [_storable(each) for each in value]
        case _:
            return value


def _query_event(event: Event, now: datetime) -> QueryEvent:
    if event.kind is Kind.PROGRESS:
        if event.progress is None:
            raise ValueError("an event of kind 'progress' needs a progress")
        found = event.progress
        batch = _figures(found)
        at = _plausible(batch.ended_at, now)
        return QueryEvent(
            kind=event.kind,
            query_id=found.id,
            run_id=found.run_id,
            at=at,
            name=(found.name or "")[:TEXT_LENGTH_MAX],
            batch=batch,
        )
    if event.id is None or event.run_id is None or event.timestamp is None:
        raise ValueError(f"an event of kind '{event.kind}' needs id, runId and timestamp")
    return QueryEvent(
        kind=event.kind,
        query_id=event.id,
        run_id=event.run_id,
        at=_plausible(_utc(event.timestamp), now),
        name=(event.name or "")[:TEXT_LENGTH_MAX],
        exception=None if event.exception is None else event.exception[:MESSAGE_LENGTH_MAX],
        error_class=(event.error_class or "")[:TEXT_LENGTH_MAX],
    )


def _figures(found: Progress) -> BatchFigures:
    duration = found.batch_duration
    if duration is None:
        duration = found.duration_ms.get("triggerExecution")
    return BatchFigures(
        batch_id=found.batch_id,
        at=_utc(found.timestamp),
        duration_ms=_natural(duration),
        rows=found.num_input_rows,
        input_rows_per_s=_finite(found.input_rows_per_second),
        processed_rows_per_s=_finite(found.processed_rows_per_second),
        watermark=_watermark(found.event_time.get("watermark")),
        phases_ms={
            name[:TEXT_LENGTH_MAX]: took
            for name, took in list(found.duration_ms.items())[:PARTS_MAX]
            if 0 <= took <= _LONG_MAX
        },
        operators=[_operator(each) for each in found.state_operators[:PARTS_MAX]],
        sources=[_source(each) for each in found.sources[:PARTS_MAX]],
        sink={
            "description": found.sink.description[:TEXT_LENGTH_MAX],
            "rows": _natural(found.sink.num_output_rows),
        }
        if found.sink
        else {},
    )


def _operator(found: Operator) -> dict[str, Any]:
    whole = {
        name[:TEXT_LENGTH_MAX]: value
        for name, value in found.custom_metrics.items()
        if ".partition_" not in name and isinstance(value, int | float) and math.isfinite(value)
    }
    return {
        "name": found.operator_name[:TEXT_LENGTH_MAX],
        "rows": _natural(found.num_rows_total),
        "updated": _natural(found.num_rows_updated),
        "removed": _natural(found.num_rows_removed),
        "bytes": _natural(found.memory_used_bytes),
        "dropped": _natural(found.num_rows_dropped_by_watermark),
        "partitions": _natural(found.num_shuffle_partitions),
        "commit_ms": _natural(found.commit_time_ms),
        "metrics": dict(list(whole.items())[:METRICS_MAX]),
    }


def _source(found: Source) -> dict[str, Any]:
    return {
        "description": found.description[:TEXT_LENGTH_MAX],
        "start": _offset(found.start_offset),
        "end": _offset(found.end_offset),
        "rows": _natural(found.num_input_rows),
        "input_rows_per_s": _finite(found.input_rows_per_second),
        "processed_rows_per_s": _finite(found.processed_rows_per_second),
        "lag": lag_of(found.end_offset, found.latest_offset),
    }


def lag_of(end: Any, latest: Any) -> dict[str, int] | None:
    """Returns the records not yet read, by "topic/partition" and in total.

    None means that this source does not say. Only sources whose offsets are objects of objects of
    numbers, as Kafka's are, can be compared.
    """
    read, there = _positions(end), _positions(latest)
    if not there:
        return None
    behind = {name: max(0, position - read.get(name, 0)) for name, position in there.items()}
    most = sorted(behind.items(), key=lambda each: (-each[1], each[0]))[:PARTS_MAX]
    return {**dict(most), TOTAL: sum(behind.values())}


def _positions(offset: Any) -> dict[str, int]:
    if not isinstance(offset, dict):
        return {}
    return {
        f"{topic}/{partition}"[:TEXT_LENGTH_MAX]: position
        for topic, partitions in offset.items()
        if isinstance(partitions, dict)
        for partition, position in partitions.items()
        if isinstance(position, int)
    }


def _offset(given: Any) -> str:
    if given is None:
        return ""
    written = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return written[:OFFSET_LENGTH_MAX]


def _watermark(written: str | None) -> datetime | None:
    """Spark says 1970 until it has seen event time."""
    if not written:
        return None
    try:
        found = _utc(msgspec.convert(written, datetime))
    except msgspec.ValidationError:
        return None
    return found if found.year > 1970 else None


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _plausible(at: datetime, now: datetime) -> datetime:
    if at > now + AHEAD_MAX:
        raise ValueError(f"{at:%Y-%m-%d %H:%M} UTC lies in the future; check the driver's clock")
    return at


def _natural(number: int | None) -> int | None:
    """Spark writes -1 for unknown."""
    return number if number is not None and 0 <= number <= _LONG_MAX else None


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
