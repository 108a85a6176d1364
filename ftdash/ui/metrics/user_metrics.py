"""The metrics of authors' functions: a row and a panel of the chart for each. Pure.

A panel has lines for the sum, the least and the greatest value over the subtasks. For a histogram,
it has lines for the least and the greatest value and the 95th percentile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ftdash.formats import number
from ftdash.metrics.queries.loads import (
    MetricKey,
    MetricTotals,
    RunLoads,
    UserMetric,
    VertexMoment,
    totals,
)
from ftdash.ui.figures.style import Figure, Json, axis, escaped, layout, time_axis
from ftdash.ui.metrics.operators import line

PANELS_MAX = 12
"""Panels of the chart; the table has every metric."""
PANEL_PX = 130
_SHARE = 0.72
"""The share of a panel's height that the lines take; its name is in the rest."""

Measured = Callable[[MetricTotals], float | None]
_LINES: dict[str, Measured] = {
    "sum": lambda each: each.total if each.kind != "histogram" else None,
    "least": lambda each: each.least,
    "greatest": lambda each: each.most,
    "95th percentile": lambda each: each.p95,
}
Past = dict[MetricKey, list[tuple[datetime, MetricTotals]]]


@dataclass(frozen=True, slots=True)
class MetricRow:
    key: MetricKey
    totals: MetricTotals
    subtasks: list[tuple[int, UserMetric]]

    @property
    def problems(self) -> list[str]:
        """The reasons why subtasks do not know the value, each once."""
        return list(dict.fromkeys(each.problem for _, each in self.subtasks if each.problem))


@dataclass(frozen=True, slots=True)
class MetricTrendRow:
    at: datetime
    metrics: list[tuple[MetricKey, MetricTotals]]


def metric_rows(loads: RunLoads | None) -> list[MetricRow]:
    """Returns the metrics in the order in which subtasks report them."""
    subtasks = loads.subtasks if loads else []
    reported = [(load.subtask, metric) for load in subtasks for metric in load.metrics]
    return [
        MetricRow(key, found, [each for each in reported if _key(each[1]) == key])
        for key, found in totals(metric for _, metric in reported).items()
    ]


def past_metrics(trends: dict[str, list[VertexMoment]]) -> Past:
    """Collects the values of each metric, oldest first.

    An operator belongs to one vertex, so each moment has a metric once.
    """
    found: Past = {}
    for moments in trends.values():
        for each in moments:
            for key, values in each.metrics.items():
                found.setdefault(key, []).append((each.at, values))
    return found


def trend_rows(past: Past, limit: int) -> list[MetricTrendRow]:
    """Returns rows of the newest moments, newest first."""
    by_time: dict[datetime, list[tuple[MetricKey, MetricTotals]]] = {}
    for key, moments in past.items():
        for at, values in moments[-limit:]:
            by_time.setdefault(at, []).append((key, values))
    return [MetricTrendRow(at, by_time[at]) for at in sorted(by_time, reverse=True)[:limit]]


def figure(past: Past) -> Figure | None:
    """Draws panels below each other with one time axis; None if too few moments are known."""
    panels = [drawn for key in past if (drawn := _panel(key, past[key]))][:PANELS_MAX]
    if not panels:
        return None
    count, named = len(panels), set[object]()
    data: list[Json] = []
    axes: Json = {}
    for index, (_, lines) in enumerate(panels):
        suffix = "" if index == 0 else str(index + 1)
        bottom = 1 - (index + 1) / count
        domain = [round(bottom, 4), round(bottom + _SHARE / count, 4)]
        axes[f"yaxis{suffix}"] = axis(domain=domain, nticks=4, rangemode="tozero")
        for each in lines:
            data.append(each | {"yaxis": f"y{suffix}", "showlegend": each["name"] not in named})
            named.add(each["name"])
    lowest = f"y{count}" if count > 1 else "y"
    return {
        "data": data,
        "layout": layout(
            60 + PANEL_PX * count,
            showlegend=True,
            hovermode="closest",
            xaxis=time_axis() | {"anchor": lowest},
            annotations=[_name(key, index, count) for index, (key, _) in enumerate(panels)],
            **axes,
        ),
    }


def _panel(
    key: MetricKey, moments: list[tuple[datetime, MetricTotals]]
) -> tuple[MetricKey, list[Json]] | None:
    times = [at for at, _ in moments]
    lines = []
    for index, (name, measured) in enumerate(_LINES.items()):
        values = [measured(each) for _, each in moments]
        drawn = line(name, index, times, [(value, number(value)) for value in values])
        if drawn is not None:
            lines.append(drawn | {"legendgroup": name})
    return (key, lines) if lines else None


def _name(key: MetricKey, index: int, count: int) -> Json:
    """The name above a panel."""
    return {
        "text": f"{escaped(key.operator)}: {escaped(key.name)}",
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": round(1 - (index + 1 - _SHARE) / count, 4),
        "yanchor": "bottom",
    }


def _key(metric: UserMetric) -> MetricKey:
    return MetricKey(metric.operator, metric.name)
