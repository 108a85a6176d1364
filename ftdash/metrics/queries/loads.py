"""The present load of each subtask of a run, and the past load of its operators, from samples.

A load also holds the metrics that authors' functions keep. This module is the only reader of the
rows of metrics, and its answers are frozen values. Records per second are means over the last
minute, as in Flink: two samples of one attempt, and the count in between. Another attempt's
counters began at zero again.

Source: Flink, `MeterView` and its 60 seconds.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from cachetools import LRUCache
from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    Expression,
    ExpressionWrapper,
    F,
    OuterRef,
    Subquery,
    Value,
    When,
)
from django.utils import timezone

from ftdash.among import among
from ftdash.jobs.models import Run
from ftdash.metrics.models import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetric:
    """One metric in one subtask."""

    operator: str
    name: str
    kind: str
    value: float | None  # a histogram's is the number of its values; None: not known
    problem: str
    least: float | None = None  # of a histogram with values, as are those below
    most: float | None = None
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class MetricKey(NamedTuple):
    operator: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTotals:
    """One metric over the subtasks that know its value. None: no subtask does.

    For a histogram, `total` is the number of its values, and the others describe the values. Its
    `p95` is that of the subtask where it is greatest.
    """

    kind: str
    total: float | None
    least: float | None
    most: float | None
    p95: float | None


def user_metrics(entry: dict[str, Any]) -> list[UserMetric]:
    """`entry` is a SubtaskSample as JSON. Samples of older versions have no metrics."""
    return [
        UserMetric(
            operator=each["operator"],
            name=each["name"],
            kind=each["kind"],
            value=each.get("value"),
            problem=each.get("problem", ""),
            **(each.get("spread") or {}),
        )
        for each in entry.get("metrics", ())
    ]


def totals(metrics: Iterable[UserMetric]) -> dict[MetricKey, MetricTotals]:
    """Returns the totals at one moment, in the order in which the subtasks report the metrics."""
    found: dict[MetricKey, list[UserMetric]] = {}
    for metric in metrics:
        found.setdefault(MetricKey(metric.operator, metric.name), []).append(metric)
    return {key: _totals(of_subtasks) for key, of_subtasks in found.items()}


def _totals(metrics: list[UserMetric]) -> MetricTotals:
    values = _known(each.value for each in metrics)
    has_spread = metrics[0].kind == "histogram"
    return MetricTotals(
        kind=metrics[0].kind,
        total=sum(values) if values else None,
        least=min(_known(m.least for m in metrics) if has_spread else values, default=None),
        most=max(_known(m.most for m in metrics) if has_spread else values, default=None),
        p95=max(_known(m.p95 for m in metrics), default=None),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeys:
    """`domain.events.HotKeys` of one sending subtask: shares are 0 to 1, the greatest first."""

    vertex: str  # that gets the records
    columns: list[str]
    sampled: int
    groups: list[tuple[int, float]]
    keys: list[tuple[str, float]]  # empty: the settings do not show records


METER_SPAN = timedelta(seconds=60)
JUST_NOW = timedelta(seconds=5)
TREND_POINTS_MAX = 300
"""How many of a run's samples a trend reads, evenly spread: each holds every subtask."""

TREND_ENTRIES_MAX = 15_000
"""The most subtask entries in these samples. A wide run has fewer points, but at least a sixth."""

Number = TypeVar("Number", int, float)
Entry = dict[str, Any]  # domain.events.SubtaskSample as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskLoad:
    """None: not known (yet)."""

    vertex: str
    subtask: int
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    busy_ms: int | None  # since the attempt started
    backpressured_ms: int | None
    idle_ms: int | None
    records_in: int
    records_out: int
    records_in_per_s: float | None
    records_out_per_s: float | None
    watermark_ms: int | None
    queued_records: int
    queued_bytes: int
    state_bytes: int
    pending_records: int | None = None  # for a source: waiting to be read
    bytes_in: int | None = None  # through channels, since the attempt started
    bytes_out: int | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    queued_ms: int | None = None  # about how long it takes to consume what is queued
    window_bytes: int | None = None  # what each of its channels may hold
    metrics: list[UserMetric] = field(default_factory=list)  # of authors' functions
    hot_keys: list[HotKeys] = field(default_factory=list)  # of what it sends
    stands_ms: int | None = None  # how long author's code has held it
    stands_at: str = ""  # the line of that code
    source_problem: str = ""  # the system of a source that does not answer


@dataclass(frozen=True, slots=True)
class RunLoads:
    at: datetime
    attempt: int
    resident_bytes: dict[int, int]  # by slot
    subtasks: list[SubtaskLoad]


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexMoment:
    """One vertex at one moment of the past: means over its subtasks, and their sum."""

    at: datetime
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    records_in_per_s: float | None
    records_out_per_s: float | None
    watermark_ms: int | None
    metrics: dict[MetricKey, MetricTotals] = field(default_factory=dict)


def run_loads(run_id: str) -> RunLoads | None:
    """Returns the loads from the newest sample, or None before the first."""
    newest = Sample.objects.filter(run__run_id=run_id).order_by("-sequence").first()
    return None if newest is None else _loads_of(newest, _a_minute_before(newest))


def _loads_of(newest: Sample, before: Sample | None) -> RunLoads:
    return RunLoads(
        at=newest.at,
        attempt=newest.attempt,
        resident_bytes={int(slot): size for slot, size in newest.resident_bytes.items()},
        subtasks=_subtasks(newest, before),
    )


def loads_of_each(runs: Collection[int]) -> dict[int, RunLoads]:
    """Returns `run_loads` by primary key of the run, with a few queries for any number of runs.

    A run without a sample has no entry.
    """
    chosen = _keys_of_minutes(runs)
    wanted = {key for keys in chosen.values() for key in (keys[0], keys[-1])}
    rows = Sample.objects.in_bulk(wanted)
    return {
        run: _loads_of(rows[keys[-1]], rows.get(keys[0]) if len(keys) > 1 else None)
        for run, keys in chosen.items()
        if keys[-1] in rows
    }


def resident_bytes_before(run_pk: int, at: datetime) -> dict[str, int]:
    """Returns the bytes by slot, from the newest sample that had them; empty if there is none."""
    samples = Sample.objects.filter(run=run_pk, at__lte=at).order_by("-sequence")
    recent = samples.values_list("resident_bytes", flat=True)[:SUCCESSIVE]
    return next((each for each in recent if each), {})


SUCCESSIVE = 5
DECODED_MAX = 20_000
"""The most subtask entries of new samples that are kept decoded; each takes about 1 kB."""


@dataclass(frozen=True, slots=True)
class TimedLoads:
    """One sample; without rates."""

    at: datetime
    subtasks: list[SubtaskLoad]


def successive_loads(run_pk: int) -> list[TimedLoads]:
    """Returns up to `SUCCESSIVE` successive samples of the newest attempt, oldest first."""
    keys = _recent_keys(run_pk)[-SUCCESSIVE:]
    known = _timed(keys)
    return [known[key] for key in keys if key in known]


_decoded: LRUCache[int, TimedLoads] = LRUCache(
    DECODED_MAX, getsizeof=lambda each: min(DECODED_MAX, 1 + len(each.subtasks))
)


def minutes_of(runs: Collection[int]) -> dict[int, list[TimedLoads]]:
    """Returns, by primary key of a run, up to three samples of its newest attempt, oldest first.

    They are the first in the minute before its newest one, the first in the second half of that
    minute, and the newest. The minute of a run that has just reported ends now.

    There are fewer if the attempt is younger, and a run without a sample has no entry. The newest
    sample of now is read once, and is one of the others later.
    """
    chosen = _keys_of_minutes(runs)
    known = _timed({key for keys in chosen.values() for key in keys})
    found = {run: [known[key] for key in keys if key in known] for run, keys in chosen.items()}
    return {run: moments for run, moments in found.items() if moments}


def forget() -> None:
    """Forgets all decoded samples, so that each is read again."""
    _decoded.clear()


def _keys_of_minutes(runs: Collection[int]) -> dict[int, list[int]]:
    """Returns the keys of the samples for `minutes_of`, by one query, however many runs reported.

    It does not matter how long ago they reported. No list is empty.
    """
    newest = Sample.objects.filter(run=OuterRef("pk")).order_by("-sequence")
    same = Sample.objects.filter(run=OuterRef("pk"), attempt=OuterRef("newest_attempt"))
    rows = Run.objects.filter(among("pk", runs)).order_by()
    rows = rows.annotate(
        newest=Subquery(newest.values("pk")[:1]),
        newest_at=Subquery(newest.values("at")[:1]),
        newest_attempt=Subquery(newest.values("attempt")[:1]),
    )
    for name, span in (("first", METER_SPAN), ("middle", METER_SPAN / 2)):
        since = same.filter(at__gte=OuterRef(f"{name}_since")).order_by("at")
        rows = rows.annotate(**{f"{name}_since": _before_newest(span)})
        rows = rows.annotate(**{name: Subquery(since.values("pk")[:1])})
    keys = {pk: each for pk, *each in rows.values_list("pk", "first", "middle", "newest")}
    return {pk: list(dict.fromkeys(filter(None, each))) for pk, each in keys.items() if each[-1]}


def _before_newest(span: timedelta) -> Expression:
    """For a run that has just reported, counts from now: SQLite would ask Python per difference."""
    now = timezone.now()
    begins = F("newest_at") - Value(span, output_field=DurationField())
    return Case(
        When(newest_at__range=(now - JUST_NOW, now + JUST_NOW), then=Value(now - span)),
        default=ExpressionWrapper(begins, output_field=DateTimeField()),
        output_field=DateTimeField(),
    )


def _recent_keys(run_pk: int) -> list[int]:
    newest = Sample.objects.filter(run=run_pk).order_by("-sequence").only("at", "attempt").first()
    if newest is None:
        return []
    same = Sample.objects.filter(run=run_pk, attempt=newest.attempt)
    recent = same.filter(at__gte=newest.at - METER_SPAN, at__lte=newest.at)
    return list(recent.order_by("sequence").values_list("pk", flat=True))


def _timed(keys: Collection[int]) -> dict[int, TimedLoads]:
    """Returns loads by primary key of the sample; samples deleted by now have no entry."""
    known = {key: _decoded[key] for key in keys if key in _decoded}
    for each in Sample.objects.filter(among("pk", set(keys) - known.keys())).order_by():
        known[each.pk] = _decoded[each.pk] = TimedLoads(each.at, _subtasks(each, None))
    return known


def trends(run_id: str) -> dict[str, list[VertexMoment]]:
    """Returns moments by vertex, oldest first, at most `TREND_POINTS_MAX` of the stored samples."""
    samples = _spread_out(run_id)
    found: dict[str, list[VertexMoment]] = {}
    for before, sample in zip([None, *samples], samples, strict=False):
        is_same_attempt = before is not None and before.attempt == sample.attempt
        loads = _subtasks(sample, before if is_same_attempt else None)
        for vertex, subtasks in by_vertex(loads).items():
            found.setdefault(vertex, []).append(_moment(sample.at, subtasks))
    return found


def by_vertex(loads: list[SubtaskLoad]) -> dict[str, list[SubtaskLoad]]:
    found: dict[str, list[SubtaskLoad]] = {}
    for load in loads:
        found.setdefault(load.vertex, []).append(load)
    return found


def sum_known(values: list[Number | None]) -> Number | None:
    """Returns None if one part is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def least_watermark_ms(loads: list[SubtaskLoad]) -> int | None:
    known = [load.watermark_ms for load in loads if load.watermark_ms is not None]
    return min(known) if known else None


def _a_minute_before(newest: Sample) -> Sample | None:
    same = Sample.objects.filter(run=newest.run_id, attempt=newest.attempt)
    recent = same.filter(at__gte=newest.at - METER_SPAN, at__lt=newest.at)
    return recent.order_by("sequence").first()


def _spread_out(run_id: str) -> list[Sample]:
    kept = Sample.objects.filter(run__run_id=run_id).order_by("sequence")
    keys = list(kept.values_list("pk", flat=True))
    newest = kept.last()
    entries = len(newest.subtasks) if newest else 0
    points = TREND_ENTRIES_MAX // max(1, entries)
    points = max(TREND_POINTS_MAX // 6, min(TREND_POINTS_MAX, points))
    step = -(-len(keys) // points) or 1
    chosen = keys[::-1][::step]  # from the newest back, so that the newest is always included
    return list(kept.filter(pk__in=chosen))


def _subtasks(sample: Sample, before: Sample | None) -> list[SubtaskLoad]:
    earlier = {_key(entry): entry for entry in before.subtasks} if before else {}
    elapsed_s = (sample.at - before.at).total_seconds() if before else 0.0
    return [_load(entry, earlier.get(_key(entry)), elapsed_s) for entry in sample.subtasks]


def _key(entry: Entry) -> tuple[str, int]:
    return entry["vertex"], entry["subtask"]


def _load(entry: Entry, before: Entry | None, elapsed_s: float) -> SubtaskLoad:
    def per_s(name: str) -> float | None:
        now, then = entry.get(name), None if before is None else before.get(name)
        if now is None or then is None or elapsed_s <= 0:
            return None
        counted: int = now - then
        return max(0.0, counted / elapsed_s)

    return SubtaskLoad(
        vertex=entry["vertex"],
        subtask=entry["subtask"],
        busy_ratio=entry["busy_ratio"],
        backpressured_ratio=entry["backpressured_ratio"],
        idle_ratio=entry["idle_ratio"],
        busy_ms=entry.get("busy_ms"),
        backpressured_ms=entry.get("backpressured_ms"),
        idle_ms=entry.get("idle_ms"),
        records_in=entry["records_in"],
        records_out=entry["records_out"],
        records_in_per_s=per_s("records_in"),
        records_out_per_s=per_s("records_out"),
        watermark_ms=entry["watermark_ms"],
        queued_records=entry["queued_records"],
        queued_bytes=entry["queued_bytes"],
        state_bytes=entry["state_bytes"],
        pending_records=entry.get("pending_records"),
        bytes_in=entry.get("bytes_in"),
        bytes_out=entry.get("bytes_out"),
        bytes_in_per_s=per_s("bytes_in"),
        bytes_out_per_s=per_s("bytes_out"),
        queued_ms=entry.get("queued_ms"),
        window_bytes=entry.get("window_bytes"),
        stands_ms=entry.get("stands_ms"),
        stands_at=entry.get("stands_at", ""),
        source_problem=entry.get("trouble", ""),
        metrics=user_metrics(entry),
        hot_keys=[
            HotKeys(
                vertex=each["vertex"],
                columns=each["columns"],
                sampled=each["sampled"],
                groups=[(group, share) for group, share in each["groups"]],
                keys=[(key, share) for key, share in each.get("keys", ())],
            )
            for each in entry.get("hot_keys", ())
        ],
    )


def _moment(at: datetime, subtasks: list[SubtaskLoad]) -> VertexMoment:
    count = len(subtasks)
    return VertexMoment(
        at=at,
        busy_ratio=sum(load.busy_ratio for load in subtasks) / count,
        backpressured_ratio=sum(load.backpressured_ratio for load in subtasks) / count,
        idle_ratio=sum(load.idle_ratio for load in subtasks) / count,
        records_in_per_s=sum_known([load.records_in_per_s for load in subtasks]),
        records_out_per_s=sum_known([load.records_out_per_s for load in subtasks]),
        watermark_ms=least_watermark_ms(subtasks),
        metrics=totals(metric for load in subtasks for metric in load.metrics),
    )


@dataclass(frozen=True, slots=True)
class SamplePoint:
    at: datetime
    records_per_s: float
    queued_records: int
    resident_bytes: dict[int, int]  # slot to bytes


def samples(run_id: str, limit: int = 600) -> list[SamplePoint]:
    """The newest `limit` samples of a run, oldest first."""
    newest = Sample.objects.filter(run__run_id=run_id).order_by("-sequence")
    found = newest.values_list("at", "records_per_s", "queued_records", "resident_bytes")
    return [
        SamplePoint(
            at=at,
            records_per_s=records_per_s,
            queued_records=queued_records,
            resident_bytes={int(slot): size for slot, size in resident_bytes.items()},
        )
        for at, records_per_s, queued_records, resident_bytes in reversed(found[:limit])
    ]
