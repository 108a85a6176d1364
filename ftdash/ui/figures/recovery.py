"""Failures, recoveries and recovery points on one time axis."""

from collections.abc import Iterable
from datetime import datetime

from ftdash.jobs.answers import AxisPoint, RecoveryAxis, RecoveryView
from ftdash.ui.figures.style import POINTS_MAX, Figure, Json, axis, escaped, layout, moment
from ftdash.ui.formats import duration

LANES = ("savepoints", "checkpoints", "failures", "recovery", "notices")


def recovery_axis(shown: RecoveryAxis | None) -> Figure | None:
    if shown is None or not (shown.points or shown.failures):
        return None
    traces = [
        point_marks(shown.points, "can be restored", "circle", "@ok", is_available=True),
        point_marks(shown.points, "deleted by retention", "circle-open", "@muted"),
        savepoint_marks(shown.points),
        failure_marks(shown),
        recovery_spans(shown.recoveries),
        running_again_marks(shown.recoveries),
        notice_marks(shown),
    ]
    return {"data": [t for t in traces if t["x"]], "layout": recovery_layout(shown)}


def point_marks(
    points: list[AxisPoint], name: str, symbol: str, color: str, *, is_available: bool = False
) -> Json:
    chosen = [p for p in points if p.kind != "SAVEPOINT" and p.is_available == is_available]
    return marks(
        f"checkpoint, {name}",
        symbol,
        color,
        [(p.at, "checkpoints", f"checkpoint {p.checkpoint_id} completed, {name}") for p in chosen],
        size=9 if is_available else 6,
    )


def savepoint_marks(points: list[AxisPoint]) -> Json:
    chosen = [p for p in points if p.kind == "SAVEPOINT"]
    events = [(p.at, "savepoints", f"savepoint {p.checkpoint_id}") for p in chosen]
    return marks("savepoint", "star", "@savepoint", events, size=13)


def failure_marks(shown: RecoveryAxis) -> Json:
    events = [(f.at, "failures", f.cause) for f in shown.failures]
    return marks("failure", "x", "@bad", events, size=11)


def running_again_marks(recoveries: list[RecoveryView]) -> Json:
    events = [
        (r.running_at, "recovery", f"attempt {r.attempt} running: {duration(r.to_running_ms)}")
        for r in recoveries
        if r.running_at is not None
    ]
    return marks("all subtasks running again", "triangle-right", "@series-1", events, size=12)


def notice_marks(shown: RecoveryAxis) -> Json:
    events = [(n.at, "notices", n.text) for n in shown.notices]
    return marks("notice", "diamond-tall", "@warn", events, size=11)


def marks(
    name: str, symbol: str, color: str, events: Iterable[tuple[datetime, str, str]], *, size: int
) -> Json:
    kept = list(events)[-POINTS_MAX:]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [moment(at) for at, _, _ in kept],
        "y": [lane for _, lane, _ in kept],
        "customdata": [escaped(text) for _, _, text in kept],
        "hovertemplate": "%{customdata}<br>%{x|%H:%M:%S.%L} UTC<extra></extra>",
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 1.5}},
    }


def recovery_spans(recoveries: list[RecoveryView]) -> Json:
    """One line from failure to running for each recovery; None lifts the pen between two."""
    finished = [r for r in recoveries if r.running_at is not None][-POINTS_MAX // 3 :]
    times = [t for r in finished for t in (moment(r.started_at), moment(r.running_at), None)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "recovering",
        "x": times,
        "y": ["recovery" if t else None for t in times],
        "hoverinfo": "skip",
        "line": {"width": 9, "color": "@phase-align"},
    }


def recovery_layout(shown: RecoveryAxis) -> Json:
    return layout(
        250,
        hovermode="closest",
        xaxis=axis(
            type="date",
            range=[moment(shown.from_at), moment(shown.to_at)],
            title={"text": "time, UTC", "standoff": 6},
        ),
        yaxis=axis(
            type="category",
            categoryorder="array",
            categoryarray=LANES,
            range=[len(LANES) - 0.5, -0.5],
            tickmode="array",
            tickvals=LANES,
        ),
    )
