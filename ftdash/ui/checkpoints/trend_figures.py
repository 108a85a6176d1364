"""How duration, alignment, size and buffered data change from checkpoint to checkpoint.

Reduces the number of points without losing an extreme. Pure.

Source: the minimum and maximum of equal parts, as oscilloscopes draw them (peak detection).
"""

import numpy as np
from numpy.typing import NDArray

from ftdash.checkpoints.queries.completed_history import (
    CompletedHistory,
    FailedPoint,
    Measured,
    Trend,
)
from ftdash.ui.figures.style import Figure, Json, axis, in_both_zones, layout, moment, time_axis


def extremes(values: NDArray[np.float64], points_max: int) -> NDArray[np.int64]:
    """Indices, in order, of at most `points_max` values: the least and greatest of each part.

    NaN means unknown, and is left out. If all known values fit, returns all of them. `points_max`
    is at least 2.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) <= points_max:
        return known
    length = -(-len(known) // (points_max // 2))
    parts = -(-len(known) // length)
    filled = np.full(parts * length, np.nan)
    filled[: len(known)] = values[known]
    each_part = filled.reshape(parts, length)  # the last part is padded with NaN
    begins = np.arange(parts) * length
    least, greatest = np.nanargmin(each_part, axis=1), np.nanargmax(each_part, axis=1)
    kept: NDArray[np.int64] = np.unique(np.concatenate([begins + least, begins + greatest]))
    return known[kept]


TREND_POINTS_MAX = 600
"""Per trace: about two per pixel of a chart, and the page stays light."""

POINTS_MIN = 2
DAY_AND_TIME = "%Y-%m-%d %H:%M:%S"
PER_UNIT = {"ms": 1, "MB": 1e6}


def durations(trend: Trend) -> Figure | None:
    history = trend.completed
    if len(history) < POINTS_MIN:
        return None
    took = line("completed", 1, history, history.end_to_end_ms, "ms")
    return figure([took, *marks("failed", trend.failed)], "ms")


def alignments(trend: Trend) -> Figure | None:
    history = trend.completed
    if len(history) < POINTS_MIN:
        return None
    return figure([line("longest of a subtask", 1, history, history.alignment_ms, "ms")], "ms")


def sizes(trend: Trend) -> Figure | None:
    history = trend.completed
    if len(history) < POINTS_MIN:
        return None
    full = line("full", 1, history, history.state_bytes, "MB")
    new = line("uploaded", 2, history, history.uploaded_bytes, "MB")
    return figure([full, new], "MB")


def buffered(trend: Trend) -> Figure | None:
    history = trend.completed
    if len(history) < POINTS_MIN:
        return None
    held = line("held back while aligning", 1, history, history.buffered_bytes, "MB")
    kept = line("in flight, kept", 2, history, history.persisted_bytes, "MB")
    return figure([held, kept], "MB")


def line(name: str, series: int, history: CompletedHistory, values: Measured, unit: str) -> Json:
    """Only measured values; `series` is a colour of the style sheet, and a dash."""
    kept = extremes(values, TREND_POINTS_MAX)
    return {
        "type": "scatter",
        "name": name,
        "x": history.trigger_ms[kept].tolist(),
        "y": np.round(values[kept] / PER_UNIT[unit], 4).tolist(),
        "customdata": history.checkpoint_ids[kept].tolist(),
        "hovertemplate": f"checkpoint %{{customdata}}: %{{y}} {unit}, {name}<br>"
        f"{in_both_zones(DAY_AND_TIME)}<extra></extra>",
        "mode": "lines",
        "line": {
            "color": f"@series-{series}",
            "dash": "solid" if series == 1 else "dash",
            "width": 1.5,
        },
    }


def marks(name: str, found: list[FailedPoint]) -> list[Json]:
    """One trace if there are any, else none."""
    if not found:
        return []
    after_ms = np.array([each.failed_after_ms for each in found])
    kept = [found[index] for index in extremes(after_ms, TREND_POINTS_MAX)]
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [moment(each.at) for each in kept],
            "y": [round(each.failed_after_ms, 1) for each in kept],
            "customdata": [each.checkpoint_id for each in kept],
            "hovertemplate": "checkpoint %{customdata} failed after %{y} ms<br>"
            f"{in_both_zones(DAY_AND_TIME)}<extra></extra>",
            "mode": "markers",
            "marker": {"symbol": "x", "size": 8, "color": "@phase-sync"},
        }
    ]


def figure(traces: list[Json], unit: str) -> Figure:
    return {
        "data": traces,
        "layout": layout(
            240,
            showlegend=len(traces) > 1,
            hovermode="closest",
            xaxis=time_axis(),
            yaxis=axis(rangemode="tozero", title={"text": unit, "standoff": 4}, nticks=5),
        ),
    }
