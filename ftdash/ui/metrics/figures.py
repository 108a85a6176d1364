"""The charts of the metrics page: one line per operator over the stored samples."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from ftdash.formats import percent, rate, utc
from ftdash.metrics.queries.loads import VertexMoment
from ftdash.times import watermark_moment
from ftdash.ui.figures.style import (
    Figure,
    Json,
    axis,
    escaped,
    in_both_zones,
    layout,
    moment,
    time_axis,
)
from ftdash.ui.pipelines.sample_figures import DASHES, LINE_POINTS_MIN, SERIES, SILENCE

SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up")
OPERATORS_MAX = 25
"""As many as dashes and symbols can distinguish; the table below a chart has all of them."""

Trends = dict[str, list[VertexMoment]]
Value = float | None
Measured = Callable[[VertexMoment], tuple[Value, str]]
"""The drawn value of a moment, and its text for the hover label."""


def busy(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.busy_ratio)


def backpressured(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.backpressured_ratio)


def idle(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.idle_ratio)


def share(trends: Trends, ratio: Callable[[VertexMoment], float]) -> Figure | None:
    def measured(each: VertexMoment) -> tuple[Value, str]:
        return round(100 * ratio(each), 1), percent(ratio(each))

    return figure(trends, measured, "% of the time", range=[0, 100])


def records_in(trends: Trends) -> Figure | None:
    return figure(
        trends, lambda each: (each.records_in_per_s, rate(each.records_in_per_s)), "records/s"
    )


def watermarks(trends: Trends) -> Figure | None:
    def measured(each: VertexMoment) -> tuple[Value, str]:
        at = watermark_moment(each.watermark_ms)
        return moment(at), utc(at)

    return figure(trends, measured, "event time, UTC", type="date")


def figure(trends: Trends, measured: Measured, title: str, **more: object) -> Figure | None:
    names = list(trends)[:OPERATORS_MAX]
    lines = [line(name, index, trends[name], measured) for index, name in enumerate(names)]
    drawn = [each for each in lines if each is not None]
    if not drawn:
        return None
    scale = {"rangemode": "tozero", "nticks": 5} | more
    return {
        "data": drawn,
        "layout": layout(
            240,
            showlegend=True,
            hovermode="closest",
            xaxis=time_axis(),
            yaxis=axis(title={"text": title, "standoff": 4}, **scale),
        ),
    }


def line(name: str, index: int, moments: list[VertexMoment], measured: Measured) -> Json | None:
    """Broken where the run was silent; None if fewer than two moments are known."""
    values = [measured(each) for each in moments]
    if sum(value is not None for value, _ in values) < LINE_POINTS_MIN:
        return None
    points: list[tuple[int | None, Value, str]] = [
        (moment(each.at), *value) for each, value in zip(moments, values, strict=True)
    ]
    silence = silence_of([each.at for each in moments])
    for later in reversed(range(1, len(moments))):
        before = moments[later - 1].at
        if moments[later].at - before > silence:
            points.insert(later, (moment(before + silence), None, ""))
    return {
        "type": "scatter",
        "mode": "lines" if index < len(DASHES) else "lines+markers",
        "name": escaped(name),
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "customdata": [written for _, _, written in points],
        "hovertemplate": f"{template(name)}: %{{customdata}}<br>"
        f"{in_both_zones('%H:%M:%S')}<extra></extra>",
        "line": {"color": SERIES[index % 5], "dash": DASHES[index % 5], "width": 2},
        "marker": {"symbol": SYMBOLS[index // 5], "size": 6},
    }


def silence_of(times: list[datetime]) -> timedelta:
    """In decimated samples, the usual distance is longer than a second."""
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    return max(SILENCE, timedelta(seconds=3 * median(gaps)))


def template(name: str) -> str:
    """In a hover template, Plotly replaces `%{}` expressions."""
    return escaped(name).replace("%{", "% {")
