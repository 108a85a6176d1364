"""The metrics that authors' functions keep, as a sample holds them. Reads no rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple


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

    Of a histogram, `total` is the number of its values; the others are of the values. Its `p95` is
    that of the subtask where it is greatest.
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
    """Of one moment, in the order in which the subtasks report them."""
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
