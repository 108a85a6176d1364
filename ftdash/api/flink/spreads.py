"""Flink's statistics over the same number of several subtasks.

Source: Flink, `JobVertexDetailsHandler` (spread) and `MetricsAggregator` (skew).
"""

from collections.abc import Sequence
from statistics import fmean

from ftdash.api.flink.shapes_vertices import MetricOverSubtasks, Spread
from ftdash.checkpoints.distribution import quantile


def spread(values: Sequence[int]) -> Spread:
    """Whole numbers; percentiles lie between neighbours. All 0 if there are no values."""
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
