"""The metrics that Flink's pages request by name, with their values, for a job or a vertex.

Without `get`, a client receives names; with `get`, the values of the metrics that it names. An
answer leaves out unknown metrics: Flink's page shows N/A for them.

Source: Flink, `AbstractMetricsHandler`, `AbstractAggregatingMetricsHandler`,
`AggregatingSubtasksMetricsHandler`, `JobVertexDetailsHandler` (spread), `MetricsAggregator` (skew).
"""

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from ftdash.api.flink import shapes as shapes
from ftdash.api.flink.http import FlinkCall, Problem
from ftdash.api.flink.names import epoch_ms
from ftdash.api.flink.shapes import MetricOverSubtasks, Spread
from ftdash.checkpoints.answers import quantile
from ftdash.checkpoints.queries.statistics import RunStatistics
from ftdash.jobs.answers import SubtaskView
from ftdash.runs.queries.runs import RunFacts

NO_WATERMARK = -(2**63)
WATERMARK = "currentInputWatermark"

Values = dict[str, float | int | str]


def of_job(run: RunFacts, found: RunStatistics) -> Values:
    counts, restored = found.counts, found.restored
    values: Values = {
        "numRestarts": run.restart_count,
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": epoch_ms(restored.at if restored else None),
    }
    newest = [each for each in (found.completed, found.savepoint) if each is not None]
    if newest:
        last = max(newest, key=lambda each: each.row.trigger_at).row
        values |= {
            "lastCheckpointDuration": round(last.end_to_end_ms or 0),
            "lastCheckpointSize": last.uploaded_bytes or 0,
            "lastCheckpointFullSize": last.state_bytes or 0,
            "lastCheckpointPersistedData": last.persisted_bytes or 0,
            "lastCheckpointExternalPath": last.path or "",
            "lastCompletedCheckpointId": last.checkpoint_id or 0,
            "lastCheckpointCompletedTimestamp": epoch_ms(last.completed_at),
        }
    return values


def of_subtask(view: SubtaskView) -> Values:
    bytes_moved = {"numBytesIn": view.bytes_in, "numBytesOut": view.bytes_out}
    return {
        "busyTimeMsPerSecond": round(view.busy_ratio * 1000),
        "backPressuredTimeMsPerSecond": round(view.backpressured_ratio * 1000),
        "idleTimeMsPerSecond": round(view.idle_ratio * 1000),
        "numRecordsIn": view.records_in,
        "numRecordsOut": view.records_out,
        **{name: value for name, value in bytes_moved.items() if value is not None},
        WATERMARK: NO_WATERMARK if view.watermark_at is None else epoch_ms(view.watermark_at),
    }


def spread(values: Sequence[int]) -> Spread:
    """Returns whole numbers; percentiles are interpolated. All are 0 if there are no values."""
    ordered = sorted(values) or [0]
    return Spread(
        min=ordered[0],
        max=ordered[-1],
        avg=sum(ordered) // len(ordered),
        sum=sum(ordered),
        median=int(quantile(ordered, 0.5)),
        p25=int(quantile(ordered, 0.25)),
        p75=int(quantile(ordered, 0.75)),
        p95=int(quantile(ordered, 0.95)),
    )


def over_subtasks(name: str, values: Sequence[float], wanted: frozenset[str]) -> MetricOverSubtasks:
    """Needs at least one value; returns only the wanted kinds of numbers."""
    numbers = {
        "min": float(min(values)),
        "max": float(max(values)),
        "avg": fmean(values),
        "sum": float(sum(values)),
        "skew": skew_percent(values),
    }
    return MetricOverSubtasks(id=name, **{kind: numbers[kind] for kind in sorted(wanted)})


def skew_percent(values: Sequence[float]) -> float:
    """Mean distance from the mean, in percent of the mean, at most 100; 0 when all are 0."""
    mean = fmean(values)
    if mean == 0:
        return 0.0
    return min(100.0, 100.0 * fmean(abs(value - mean) for value in values) / abs(mean))


AGGREGATIONS = frozenset(("min", "max", "avg", "sum", "skew"))
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def listed(call: FlinkCall, values: Values) -> object:
    """Returns the names, or the values that `get` names; leaves out unknown names."""
    wanted = call.values("get")
    if not any(wanted):
        return [shapes.MetricName(id=name) for name in values]
    named = [name for name in wanted if name in values]
    return [shapes.MetricValue(id=name, value=str(values[name])) for name in named]


def aggregated(call: FlinkCall, found: Sequence[Values]) -> object:
    """Aggregates over subtasks or jobs. Raises Problem if `agg` names an unknown aggregation."""
    wanted = call.values("get")
    kinds = frozenset(filter(None, call.values("agg"))) or AGGREGATIONS
    if not kinds <= AGGREGATIONS:
        known = ", ".join(sorted(AGGREGATIONS))
        raise Problem(400, f"The parameter agg takes {known}, not {call.parameter('agg')!r}.")
    if not any(wanted):
        names = {name: None for values in found for name in values}
        return [shapes.MetricName(id=name) for name in names]
    answer = []
    for name in wanted:
        given = [values[name] for values in found if name in values]
        numbers = [float(value) for value in given if not isinstance(value, str)]
        if numbers:
            answer.append(over_subtasks(name, numbers, kinds))
    return answer


def within(ranges: Sequence[str], indices: Iterable[int]) -> list[int]:
    """Selects indices by ranges like `0-2` or `4`, or all if there are no ranges.

    A malformed range selects nothing.
    """
    if not ranges:
        return list(indices)
    found = filter(None, (_RANGE.fullmatch(each.strip()) for each in ranges))
    spans = [(int(each[1]), int(each[2] or each[1])) for each in found]
    return [index for index in indices if any(low <= index <= high for low, high in spans)]
