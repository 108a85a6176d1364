"""The trends of a run's checkpoints, in charts, sentences and a table: duration, alignment, sizes.

Pure. A chart of many checkpoints draws fewer points without losing an extreme. Source: the minimum
and maximum of equal parts, as oscilloscopes draw them (peak detection).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from ftdash import times
from ftdash.checkpoints.answers import quantile
from ftdash.checkpoints.queries.completed_history import (
    CompletedHistory,
    FailedPoint,
    Measured,
    Trend,
    known_of,
)
from ftdash.formats import UNKNOWN, count, duration, plural, size
from ftdash.ui.figures.style import (
    WHOLE_NUMBERS,
    Chart,
    Figure,
    Json,
    axis,
    in_both_zones,
    layout,
    moment,
    time_axis,
)


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
    """Draws only measured values; `series` chooses a colour of the style sheet, and a dash."""
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
    """Returns one trace if there are any failures, else none."""
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
            yaxis=axis(
                rangemode="tozero",
                title={"text": unit, "standoff": 4},
                nticks=5,
                **(WHOLE_NUMBERS if unit == "ms" else {}),
            ),
        ),
    }


PARTS_LISTED = 24
Write = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class TrendRow:
    """The greatest values among successive checkpoints."""

    first_id: int
    last_id: int
    from_at: datetime
    cells: list[str]  # in the order of `TREND_COLUMNS`


@dataclass(frozen=True, slots=True)
class Trends:
    charts: list[tuple[str, Chart]]  # heading and chart
    rows: list[TrendRow]  # oldest first


_COLUMNS: list[tuple[str, str, Write]] = [
    ("Duration", "end_to_end_ms", duration),
    ("Alignment", "alignment_ms", duration),
    ("Full size", "state_bytes", size),
    ("Uploaded", "uploaded_bytes", size),
    ("Held back", "buffered_bytes", size),
    ("In flight, kept", "persisted_bytes", size),
]
TREND_COLUMNS = [label for label, _, _ in _COLUMNS]


def trends(trend: Trend) -> Trends:
    took, aligned, full, _, held, _ = _COLUMNS
    return Trends(
        charts=[
            ("Duration", _chart("durations", trend, took, durations(trend))),
            ("Alignment", _chart("alignments", trend, aligned, alignments(trend))),
            ("Size", _chart("sizes", trend, full, sizes(trend))),
            ("Buffered", _chart("buffered", trend, held, buffered(trend))),
        ],
        rows=rows(trend),
    )


def _chart(
    name: str, trend: Trend, column: tuple[str, str, Write], figure: dict[str, object] | None
) -> Chart:
    if figure is None:
        return Chart(name, "The trend appears with the second completed checkpoint.", None)
    label, field, write = column
    values: Measured = getattr(trend.completed, field)
    known = np.sort(known_of(values)).tolist()
    if not known:
        return Chart(name, "No completed checkpoint has this figure.", None)
    worst = trend.completed.checkpoint_ids[np.nanargmax(values)]
    failed = ""
    if name == "durations" and trend.failed:
        failed = f" {plural(len(trend.failed), 'failed one')} marked, after how long."
    return Chart(
        name,
        f"{label} of {plural(len(known), 'completed checkpoint')}: the greatest is"
        f" {write(known[-1])} (checkpoint {worst}), the median {write(quantile(known, 0.5))}."
        f"{_drawn(len(known))}{failed}",
        figure,
    )


def _drawn(known: int) -> str:
    """Says that the chart leaves out some points, but no spike."""
    if known <= TREND_POINTS_MAX:
        return ""
    each = count(2 * known / TREND_POINTS_MAX)
    return f" Of every {each} the least and the greatest are drawn, so that no spike is lost."


def rows(trend: Trend) -> list[TrendRow]:
    history = trend.completed
    length = -(-len(history) // PARTS_LISTED) or 1
    parts = [history.part(begin, begin + length) for begin in range(0, len(history), length)]
    return [
        TrendRow(
            first_id=int(part.checkpoint_ids[0]),
            last_id=int(part.checkpoint_ids[-1]),
            from_at=times.moment(int(part.trigger_ms[0])),
            cells=[_greatest(part, field, write) for _, field, write in _COLUMNS],
        )
        for part in parts
    ]


def _greatest(part: CompletedHistory, field: str, write: Write) -> str:
    known = known_of(getattr(part, field))
    return write(float(known.max())) if len(known) else UNKNOWN
