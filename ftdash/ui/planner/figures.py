"""The share of time lost to checkpoints and to failures, by interval."""

from ftdash.formats import duration, percent
from ftdash.ui.figures.style import Figure, Json, axis, layout
from pipelines.domain.planning import Costs, lost_ratio

POINTS = 60
SPAN = 30.0
"""The chart goes from a thirtieth of the best interval to thirty times it."""


def lost_time(costs: Costs, best_ms: float, now_ms: float | None) -> Figure | None:
    if best_ms <= 0:
        return None
    steps = [best_ms / SPAN * SPAN ** (2 * index / (POINTS - 1)) for index in range(POINTS)]
    data = [
        curve("all that is lost", steps, [lost_ratio(step, costs) for step in steps], "solid", 1),
        curve("by checkpoints", steps, [costs.checkpoint_ms / step for step in steps], "dash", 2),
        mark("advised", best_ms, costs, "star"),
    ]
    if now_ms is not None and now_ms > 0:
        data.append(mark("set now", now_ms, costs, "circle"))
    return {
        "data": data,
        "layout": layout(
            260,
            showlegend=True,
            hovermode="closest",
            xaxis=axis(type="log", title={"text": "interval, s", "standoff": 4}, nticks=8),
            yaxis=axis(type="log", title={"text": "% of the time", "standoff": 4}, nticks=6),
        ),
    }


def curve(name: str, steps: list[float], ratios: list[float], dash: str, color: int) -> Json:
    return {
        **points(name, steps, ratios),
        "mode": "lines",
        "line": {"color": f"@series-{color}", "dash": dash, "width": 2},
    }


def mark(name: str, interval_ms: float, costs: Costs, symbol: str) -> Json:
    return {
        **points(name, [interval_ms], [lost_ratio(interval_ms, costs)]),
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 12, "color": "@text"},
    }


def points(name: str, intervals_ms: list[float], ratios: list[float]) -> Json:
    return {
        "type": "scatter",
        "name": name,
        "x": [interval / 1000 for interval in intervals_ms],
        "y": [100 * ratio for ratio in ratios],
        "customdata": [
            f"{percent(ratio)} at {duration(interval)}"
            for interval, ratio in zip(intervals_ms, ratios, strict=True)
        ],
        "hovertemplate": f"{name}: %{{customdata}}<extra></extra>",
    }
