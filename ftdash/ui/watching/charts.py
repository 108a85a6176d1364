"""The charts of a watched query: batch durations by phase, rates, lag and state, batch by batch.

Pure. Batches are side by side in the order of their start, however much time is between them: bars
over a time axis would be too thin to see once a query has waited for an hour. Each chart draws one
page of the history; the table below the charts has the same batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ftdash.checkpoints.answers import quantile
from ftdash.formats import UNKNOWN, count, duration, plural, rate, size, utc
from ftdash.ui.figures.style import (
    DASHES,
    SERIES,
    Chart,
    Figure,
    Json,
    axis,
    escaped,
    layout,
    pattern_of,
    short_legend,
)
from ftdash.watching.progress import TOTAL, BatchFigures
from ftdash.watching.queries import BatchView

PHASES = (
    ("latestOffset", "Find input", "@phase-1", ""),
    ("queryPlanning", "Plan", "@phase-2", "x"),
    ("getBatch", "Get batch", "@phase-3", "/"),
    ("walCommit", "Log offsets", "@phase-5", "."),
    ("addBatch", "Process", "@phase-4", ""),
    ("commitOffsets", "Commit", "@phase-6", "\\"),
)
"""Spark's name, ours, colour, pattern; in the order in which Spark works."""

OTHER = "Other"
POINTS_MIN = 2
TICKS_MAX = 8
SERIES_MAX = len(SERIES)


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """The times of one batch, in the order of `PHASES`, then the rest; None if not reported."""

    times_ms: list[int | None]

    @classmethod
    def of(cls, figures: BatchFigures) -> "PhaseTimes":
        known = [figures.phases_ms.get(name) for name, *_ in PHASES]
        rest = None
        if figures.phases_ms and figures.duration_ms is not None:
            rest = max(0, figures.duration_ms - sum(filter(None, known)))
        return cls([*known, rest])


PHASE_NAMES = [*(name for _, name, *_ in PHASES), OTHER]


def charts(newest_first: Sequence[BatchView], interval_ms: float | None) -> list[tuple[str, Chart]]:
    """Returns heading and chart of each figure."""
    shown = [each.figures for each in reversed(newest_first)]
    return [
        ("Batch duration", _phases(shown, interval_ms)),
        ("Rates", _rates(shown)),
        ("Lag", _lag(shown)),
        ("Rows in state", _state(shown, "state-rows", "rows", "rows", count)),
        ("Size of state", _state(shown, "state-bytes", "bytes", "MB", size)),
    ]


def _phases(shown: list[BatchFigures], interval_ms: float | None) -> Chart:
    name = "batch-phases"
    known = [each for each in shown if each.duration_ms is not None]
    if len(shown) < POINTS_MIN or not known:
        return Chart(name, "The durations appear with the second batch.", None)
    longest = max(known, key=lambda each: each.duration_ms or 0)
    ordered = sorted(float(each.duration_ms or 0) for each in known)
    said = (
        f"Duration of {plural(len(known), 'batch', 'batches')}: the longest took"
        f" {duration(longest.duration_ms)} (batch {longest.batch_id}), the median"
        f" {duration(quantile(ordered, 0.5))}. {_against(known, interval_ms)}"
    )
    return Chart(name, said, _phase_figure(shown, interval_ms))


def _against(known: list[BatchFigures], interval_ms: float | None) -> str:
    if interval_ms is None:
        return "No trigger interval is known: batches run back to back, or only files show them."
    late = sum((each.duration_ms or 0) > interval_ms for each in known)
    if not late:
        return f"All fit into the trigger interval of {duration(interval_ms)}."
    return f"{count(late)} took longer than the trigger interval of {duration(interval_ms)}."


def _phase_figure(shown: list[BatchFigures], interval_ms: float | None) -> Figure:
    times = [PhaseTimes.of(each).times_ms for each in shown]
    rest = OTHER
    if not any(each.phases_ms for each in shown):  # files show only how long a batch took
        rest = "From plan to commit"
        times = [
            [*each[:-1], figures.duration_ms] for each, figures in zip(times, shown, strict=True)
        ]
    looks = [*PHASES, ("", rest, "@phase-delay", "")]
    bars = [
        _bar(shown, name, color, pattern, [each[index] for each in times])
        for index, (_, name, color, pattern) in enumerate(looks)
        if any(each[index] for each in times)
    ]
    if interval_ms is not None:
        bars.append(_interval(len(shown), interval_ms))
    return {"data": bars, "layout": {**_layout(shown, "ms", legend_px=66), "barmode": "stack"}}


def _bar(
    shown: list[BatchFigures], name: str, color: str, pattern: str, values: list[int | None]
) -> Json:
    return {
        "type": "bar",
        "name": name,
        "x": list(range(len(shown))),
        "y": values,
        "customdata": [_hover(each, duration(v)) for each, v in zip(shown, values, strict=True)],
        "hovertemplate": f"{name}: %{{customdata}}<extra></extra>",
        "marker": {"color": color, "pattern": pattern_of(pattern), "line": {"width": 0}},
    }


def _interval(batch_count: int, interval_ms: float) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Interval",
        "x": [-0.5, batch_count - 0.5],
        "y": [round(interval_ms, 1)] * 2,
        "hovertemplate": f"trigger interval {duration(interval_ms)}<extra></extra>",
        "line": {"color": "@text", "dash": "dash", "width": 2},
    }


def _rates(shown: list[BatchFigures]) -> Chart:
    name = "batch-rates"
    known = [each for each in shown if each.processed_rows_per_s is not None]
    if len(known) < POINTS_MIN:
        return Chart(name, "The rates appear when two batches have been reported.", None)
    newest = known[-1]
    lines = [
        _line(shown, "input", 0, [e.input_rows_per_s for e in shown], rate),
        _line(shown, "processed", 1, [e.processed_rows_per_s for e in shown], rate),
    ]
    said = (
        f"In batch {newest.batch_id}, {rate(newest.input_rows_per_s)} rows arrived and"
        f" {rate(newest.processed_rows_per_s)} could be processed. A query falls behind while the"
        " first is above the second."
    )
    return Chart(name, said, {"data": lines, "layout": _layout(shown, "rows/s", legend_px=90)})


def _lag(shown: list[BatchFigures]) -> Chart:
    name = "batch-lag"
    named = sorted({s["description"] for each in shown for s in each.sources if s["lag"]})
    if not named or len(shown) < POINTS_MIN:
        return Chart(
            name, "No source of this query says how much input waits, as Kafka's would.", None
        )
    lines = [
        _line(shown, source, index, [_lag_of(each, source) for each in shown], count)
        for index, source in enumerate(named[:SERIES_MAX])
    ]
    newest = next(each for each in reversed(shown) if any(s["lag"] for s in each.sources))
    waiting = sum(s["lag"][TOTAL] for s in newest.sources if s["lag"])
    said = (
        f"{plural(waiting, 'record')} waited in {plural(len(named), 'source')} when batch"
        f" {newest.batch_id} was planned; the page of a batch has each partition."
    )
    return Chart(name, said, {"data": lines, "layout": _layout(shown, "records", legend_px=220)})


def _lag_of(figures: BatchFigures, source: str) -> int | None:
    found = [s["lag"][TOTAL] for s in figures.sources if s["description"] == source and s["lag"]]
    return sum(found) if found else None


def _state(
    shown: list[BatchFigures], name: str, field: str, unit: str, write: Callable[[float], str]
) -> Chart:
    named = _operators(shown)
    if not named or len(shown) < POINTS_MIN:
        return Chart(name, "No batch has reported stateful operators.", None)
    divisor = 1e6 if unit == "MB" else 1
    lines = []
    for index, operator in enumerate(named[:SERIES_MAX]):
        values = [_of_operator(each, operator, field) for each in shown]
        lines.append(_line(shown, operator, index, values, write, divisor=divisor))
    newest = next(each for each in reversed(shown) if each.operators)
    total = sum(each[field] or 0 for each in newest.operators)
    what = "The state has" if field == "rows" else "The state takes"
    said = (
        f"{what} {write(total)}{' rows' if field == 'rows' else ''} in"
        f" {plural(len(newest.operators), 'operator')} after batch {newest.batch_id}."
    )
    return Chart(name, said, {"data": lines, "layout": _layout(shown, unit, legend_px=160)})


def _operators(shown: list[BatchFigures]) -> list[str]:
    """Names operators by position, as `0 stateStoreSave`, because two may have the same name."""
    longest = max((each.operators for each in shown), key=len, default=[])
    return [f"{index} {each['name']}" for index, each in enumerate(longest)]


def _of_operator(figures: BatchFigures, operator: str, field: str) -> int | None:
    index = int(operator.partition(" ")[0])
    return figures.operators[index][field] if index < len(figures.operators) else None


def _line(
    shown: list[BatchFigures],
    name: str,
    series: int,
    values: Sequence[float | None],
    write: Callable[[float], str],
    *,
    divisor: float = 1,
) -> Json:
    written = [UNKNOWN if v is None else write(v) for v in values]
    label = escaped(name)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": list(range(len(shown))),
        "y": [None if v is None else round(v / divisor, 4) for v in values],
        "customdata": [_hover(each, text) for each, text in zip(shown, written, strict=True)],
        "hovertemplate": f"{label}: %{{customdata}}<extra></extra>",
        "line": {"color": SERIES[series], "dash": DASHES[series], "width": 2},
        "marker": {"color": SERIES[series], "size": 4},
    }


def _hover(figures: BatchFigures, text: str) -> str:
    return f"{text}<br>batch {figures.batch_id}, {utc(figures.at)}"


def _layout(shown: list[BatchFigures], unit: str, *, legend_px: int) -> Json:
    step = -(-len(shown) // TICKS_MAX)
    ticks = range(0, len(shown), step)
    return layout(
        240,
        legend=short_legend(legend_px),
        hovermode="closest",
        showlegend=True,
        xaxis=axis(
            tickvals=list(ticks),
            ticktext=[str(shown[index].batch_id) for index in ticks],
            range=[-0.5, len(shown) - 0.5],
            title={"text": "batch", "standoff": 6},
        ),
        yaxis=axis(rangemode="tozero", title={"text": unit, "standoff": 4}, nticks=5),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A line of the table below the charts."""

    key: int
    run_id: str
    figures: BatchFigures
    phases: list[int | None]  # in the order of `PHASE_NAMES`
    lag: int | None
    state_rows: int | None
    state_bytes: int | None
    dropped: int | None

    @property
    def at(self) -> datetime:
        return self.figures.at


def batch_row(batch: BatchView) -> BatchRow:
    found = batch.figures
    lags = [each["lag"][TOTAL] for each in found.sources if each["lag"]]
    return BatchRow(
        key=batch.key,
        run_id=batch.run_id,
        figures=found,
        phases=PhaseTimes.of(found).times_ms,
        lag=sum(lags) if lags else None,
        state_rows=_total(found, "rows"),
        state_bytes=_total(found, "bytes"),
        dropped=_total(found, "dropped"),
    )


def _total(figures: BatchFigures, field: str) -> int | None:
    known = [each[field] for each in figures.operators if each[field] is not None]
    return sum(known) if known else None
