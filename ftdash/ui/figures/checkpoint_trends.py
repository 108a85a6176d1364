"""How duration, alignment, size and what was buffered change from checkpoint to checkpoint."""

from collections.abc import Sequence
from datetime import datetime

from ftdash.checkpoints.trends import Trend, TrendPoint
from ftdash.ui.figures.decimation import extremes
from ftdash.ui.figures.style import Figure, Json, axis, layout

TREND_POINTS_MAX = 600
"""Per trace: two for each pixel or so of a chart, and a page that stays light."""

POINTS_MIN = 2
PER_UNIT = {"ms": 1, "MB": 1e6}
Values = Sequence[float | None]


def durations(trend: Trend) -> Figure | None:
    points = trend.completed
    if len(points) < POINTS_MIN:
        return None
    took = line("completed", 1, points, [point.took_ms for point in points], "ms")
    failed = marks("failed", [(f.checkpoint_id, f.at, f.failed_after_ms) for f in trend.failed])
    return figure([took, *failed], "ms")


def alignments(trend: Trend) -> Figure | None:
    points = trend.completed
    if len(points) < POINTS_MIN:
        return None
    return figure(
        [line("longest of a subtask", 1, points, [p.alignment_ms for p in points], "ms")], "ms"
    )


def sizes(trend: Trend) -> Figure | None:
    points = trend.completed
    if len(points) < POINTS_MIN:
        return None
    full = line("full", 1, points, [point.state_bytes for point in points], "MB")
    new = line("uploaded", 2, points, [point.uploaded_bytes for point in points], "MB")
    return figure([full, new], "MB")


def buffered(trend: Trend) -> Figure | None:
    points = trend.completed
    if len(points) < POINTS_MIN:
        return None
    held = [point.buffered_bytes for point in points]
    kept = [point.persisted_bytes for point in points]
    return figure(
        [
            line("held back while aligning", 1, points, held, "MB"),
            line("in flight, kept", 2, points, kept, "MB"),
        ],
        "MB",
    )


def line(name: str, series: int, points: list[TrendPoint], values: Values, unit: str) -> Json:
    """Only what was measured; `series` is a colour of the style sheet, and a dash."""
    kept = extremes(values, TREND_POINTS_MAX)
    return {
        "type": "scatter",
        "name": name,
        "x": [epoch_ms(points[index].at) for index in kept],
        "y": [round((values[index] or 0) / PER_UNIT[unit], 4) for index in kept],
        "customdata": [points[index].checkpoint_id for index in kept],
        "hovertemplate": f"checkpoint %{{customdata}}: %{{y}} {unit}, {name}<br>"
        "%{x|%Y-%m-%d %H:%M:%S} UTC<extra></extra>",
        "mode": "lines",
        "line": {
            "color": f"@series-{series}",
            "dash": "solid" if series == 1 else "dash",
            "width": 1.5,
        },
    }


def marks(name: str, found: list[tuple[int, datetime, float]]) -> list[Json]:
    """Drawn where there are any."""
    if not found:
        return []
    kept = [found[index] for index in extremes([ms for _, _, ms in found], TREND_POINTS_MAX)]
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [epoch_ms(at) for _, at, _ in kept],
            "y": [round(ms, 1) for _, _, ms in kept],
            "customdata": [number for number, _, _ in kept],
            "hovertemplate": "checkpoint %{customdata} failed after %{y} ms<extra></extra>",
            "mode": "markers",
            "marker": {"symbol": "x", "size": 8, "color": "@phase-sync"},
        }
    ]


def epoch_ms(at: datetime) -> int:
    """A third of what the moment takes in words; Plotly reads it as UTC."""
    return round(at.timestamp() * 1000)


def figure(traces: list[Json], unit: str) -> Figure:
    return {
        "data": traces,
        "layout": layout(
            220,
            showlegend=len(traces) > 1,
            hovermode="closest",
            xaxis=axis(type="date", nticks=6),
            yaxis=axis(rangemode="tozero", title={"text": unit, "standoff": 4}, nticks=5),
        ),
    }
