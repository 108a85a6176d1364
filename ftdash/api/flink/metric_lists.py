"""How a client picks metrics: without `get` it receives names, with `get` the values it names.

Source: Flink, `AbstractMetricsHandler`, `AbstractAggregatingMetricsHandler` and
`AggregatingSubtasksMetricsHandler`.
"""

import re
from collections.abc import Iterable, Sequence

from ftdash.api.flink import shapes_vertices as shapes
from ftdash.api.flink.http import Asked, Problem
from ftdash.api.flink.metrics import Values
from ftdash.api.flink.spreads import over_subtasks

AGGREGATIONS = frozenset(("min", "max", "avg", "sum", "skew"))
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def listed(asked: Asked, values: Values) -> object:
    """Leaves out names that are not known."""
    wanted = asked.values("get")
    if not any(wanted):
        return [shapes.MetricName(id=name) for name in values]
    named = [name for name in wanted if name in values]
    return [shapes.MetricValue(id=name, value=str(values[name])) for name in named]


def aggregated(asked: Asked, found: Sequence[Values]) -> object:
    """Over subtasks or jobs. Raises Problem if `agg` names an unknown aggregation."""
    wanted = asked.values("get")
    kinds = frozenset(filter(None, asked.values("agg"))) or AGGREGATIONS
    if not kinds <= AGGREGATIONS:
        known = ", ".join(sorted(AGGREGATIONS))
        raise Problem(400, f"The parameter agg takes {known}, not {asked.parameter('agg')!r}.")
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
    """The indices in ranges like `0-2` or `4`; none: all. A malformed range selects nothing."""
    if not ranges:
        return list(indices)
    found = filter(None, (_RANGE.fullmatch(each.strip()) for each in ranges))
    spans = [(int(each[1]), int(each[2] or each[1])) for each in found]
    return [index for index in indices if any(low <= index <= high for low, high in spans)]
