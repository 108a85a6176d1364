"""How a client picks metrics: without `get` it is told names, with it the values of those it names.

Source: Flink, `AbstractMetricsHandler` and `AbstractAggregatingMetricsHandler`.
"""

from collections.abc import Sequence

from ftdash.api.flink import shapes_vertices as shapes
from ftdash.api.flink.http import Asked, Problem
from ftdash.api.flink.metrics import Values
from ftdash.api.flink.spreads import over_subtasks

AGGREGATIONS = frozenset(("min", "max", "avg", "sum", "skew"))


def listed(asked: Asked, values: Values) -> object:
    """A name that is not known is left away."""
    wanted = asked.parameter("get")
    if not wanted:
        return [shapes.MetricName(id=name) for name in values]
    named = [name for name in wanted.split(",") if name in values]
    return [shapes.MetricValue(id=name, value=str(values[name])) for name in named]


def aggregated(asked: Asked, found: Sequence[Values]) -> object:
    """Over subtasks, or over jobs. Raises Problem when `agg` names what there is not."""
    wanted = asked.parameter("get")
    kinds = frozenset(filter(None, asked.parameter("agg").split(","))) or AGGREGATIONS
    if not kinds <= AGGREGATIONS:
        known = ", ".join(sorted(AGGREGATIONS))
        raise Problem(400, f"The parameter agg takes {known}, not {asked.parameter('agg')!r}.")
    if not wanted:
        names = {name: None for values in found for name in values}
        return [shapes.MetricName(id=name) for name in names]
    answer = []
    for name in wanted.split(","):
        given = [values[name] for values in found if name in values]
        numbers = [float(value) for value in given if not isinstance(value, str)]
        if numbers:
            answer.append(over_subtasks(name, numbers, kinds))
    return answer
