"""The page's part about trends of checkpoints: charts, sentences, and a table. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ftdash.checkpoints.distribution import quantile
from ftdash.checkpoints.queries.completed_history import CompletedHistory, Measured, Trend, known_of
from ftdash.formats import UNKNOWN, count, duration, plural, size
from ftdash.times import moment
from ftdash.ui.checkpoints import trend_figures as figures
from ftdash.ui.pipelines.parts import Chart

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
            ("Duration", _chart("durations", trend, took, figures.durations(trend))),
            ("Alignment", _chart("alignments", trend, aligned, figures.alignments(trend))),
            ("Size", _chart("sizes", trend, full, figures.sizes(trend))),
            ("Buffered", _chart("buffered", trend, held, figures.buffered(trend))),
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
        return Chart(name, "None of the completed checkpoints tells it.", None)
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
    """Says that not everything is drawn; no spike is lost by that."""
    if known <= figures.TREND_POINTS_MAX:
        return ""
    each = count(2 * known / figures.TREND_POINTS_MAX)
    return f" Of every {each} the least and the greatest are drawn, so that no spike is lost."


def rows(trend: Trend) -> list[TrendRow]:
    history = trend.completed
    length = -(-len(history) // PARTS_LISTED) or 1
    parts = [history.part(begin, begin + length) for begin in range(0, len(history), length)]
    return [
        TrendRow(
            first_id=int(part.checkpoint_ids[0]),
            last_id=int(part.checkpoint_ids[-1]),
            from_at=moment(int(part.trigger_ms[0])),
            cells=[_greatest(part, field, write) for _, field, write in _COLUMNS],
        )
        for part in parts
    ]


def _greatest(part: CompletedHistory, field: str, write: Write) -> str:
    known = known_of(getattr(part, field))
    return write(float(known.max())) if len(known) else UNKNOWN
