"""Failures, recoveries and recovery points on one time axis, and how long each phase took."""

from collections.abc import Iterable
from datetime import datetime

from ftdash.formats import duration, plural
from ftdash.jobs.answers import AxisPoint, PhaseView, RecoveryAxis, RecoveryView
from ftdash.ui.figures.style import (
    MILLISECONDS,
    POINTS_MAX,
    Figure,
    Json,
    axis,
    escaped,
    in_both_zones,
    layout,
    moment,
    pattern_of,
    short_legend,
    time_axis,
)

LANES = ("savepoints", "checkpoints", "failures", "recovery", "rewinds", "notices")

ZOMBIE = "zombie_refused"


def recovery_axis(shown: RecoveryAxis | None) -> Figure | None:
    if shown is None or not (shown.points or shown.failures):
        return None
    traces = [
        point_marks(shown.points, "kept", "circle", "@ok", is_available=True),
        point_marks(shown.points, "deleted by retention", "circle-open", "@muted"),
        savepoint_marks(shown.points),
        failure_marks(shown),
        recovery_spans(shown.recoveries),
        running_again_marks(shown.recoveries),
        rewind_spans(shown),
        rewind_marks(shown),
        notice_marks(shown),
        zombie_marks(shown),
        verification_marks(shown),
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
        (r.running_at, "recovery", f"attempt {r.attempt} running: {steps(r)}")
        for r in recoveries
        if r.running_at is not None
    ]
    return marks("all subtasks running again", "triangle-right", "@series-1", events, size=12)


def steps(recovery: RecoveryView) -> str:
    """Writes the duration of the recovery, and that of each phase."""
    phases = ", ".join(
        f"{p.phase.replace('_', ' ')} {duration(p.duration_ms)}" for p in recovery.phases
    )
    return f"{duration(recovery.to_running_ms)} ({phases})"


def notice_marks(shown: RecoveryAxis) -> Json:
    events = [(n.at, "notices", n.text) for n in shown.notices if n.kind != ZOMBIE]
    return marks("notice", "diamond-open", "@warn", events, size=11)


def zombie_marks(shown: RecoveryAxis) -> Json:
    events = [(n.at, "notices", n.text) for n in shown.notices if n.kind == ZOMBIE]
    return marks("stale attempt refused", "diamond", "@bad", events, size=11)


def verification_marks(shown: RecoveryAxis) -> Json:
    events = [
        (v.at, "checkpoints", f"points read again: {v.whole} whole, {v.damaged} damaged")
        for v in shown.verifications
    ]
    return marks("points read again", "line-ns-open", "@series-4", events, size=13)


def rewind_marks(shown: RecoveryAxis) -> Json:
    events = [(to, "rewinds", rewound(recovery)) for recovery, to in rewinds(shown)]
    return marks("went back to", "triangle-left", "@series-2", events, size=11)


def rewind_spans(shown: RecoveryAxis) -> Json:
    """Draws a line from each failure back to the point that the recovery started from."""
    found = rewinds(shown)[-POINTS_MAX // 3 :]
    times = [t for r, to in found for t in (moment(r.started_at), moment(to), None)]
    return span("rewind", "rewinds", times, width=3, color="@series-2", dash="dot")


def rewinds(shown: RecoveryAxis) -> list[tuple[RecoveryView, datetime]]:
    """Pairs each recovery with the time it went back to: the beginning, if there was no point.

    Leaves out recoveries whose point is not on the axis, and those that ended before they had
    chosen one.
    """
    completed = {point.checkpoint_id: point.at for point in shown.points}
    ends = [
        (
            r,
            shown.from_at
            if r.restored_path is None
            else completed.get(r.restored_checkpoint_id or 0),
        )
        for r in shown.recoveries
        if r.restored_path is not None or r.running_at is not None
    ]
    return [(recovery, to) for recovery, to in ends if to is not None]


def rewound(recovery: RecoveryView) -> str:
    number = recovery.restored_checkpoint_id
    where = f"checkpoint {number}" if number else "the beginning"
    replayed = plural(recovery.records_to_replay, "record")
    return f"attempt {recovery.attempt} went back to {where}, {replayed} to replay"


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
        "hovertemplate": f"%{{customdata}}<br>{in_both_zones('%H:%M:%S.%L')}<extra></extra>",
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 1.5}},
    }


def recovery_spans(recoveries: list[RecoveryView]) -> Json:
    """Draws a line from failure to running for each recovery; None separates two of them."""
    finished = [r for r in recoveries if r.running_at is not None][-POINTS_MAX // 3 :]
    times = [t for r in finished for t in (moment(r.started_at), moment(r.running_at), None)]
    return span("recovering", "recovery", times, width=9, color="@phase-align", dash="solid")


def span(
    name: str, lane: str, times: list[int | None], *, width: int, color: str, dash: str
) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": times,
        "y": [lane if t else None for t in times],
        "hoverinfo": "skip",
        "line": {"width": width, "color": color, "dash": dash},
    }


def recovery_layout(shown: RecoveryAxis) -> Json:
    return layout(
        230,
        hovermode="closest",
        showlegend=False,  # the page has the key below, where it may wrap on a phone
        xaxis=time_axis(range=[moment(shown.from_at), moment(shown.to_at)]),
        yaxis=axis(
            type="category",
            categoryorder="array",
            categoryarray=LANES,
            range=[len(LANES) - 0.5, -0.5],
            tickmode="array",
            tickvals=LANES,
        ),
    )


RECOVERIES_MAX = 12
PHASE_STYLE = {  # phase of a recovery -> colour, pattern, label; in the order they are reached
    "detect": ("@phase-1", "", "detect"),
    "decide": ("@phase-2", "/", "decide"),
    "stop": ("@phase-3", "x", "stop"),
    "backoff": ("@muted", "+", "backoff"),
    "start": ("@phase-4", "-", "start"),
    "restore": ("@phase-5", "\\", "restore"),
    "first_record": ("@phase-6", ".", "first record"),
}


def recovery_phases(shown: RecoveryAxis | None) -> Figure | None:
    """The newest recoveries, one stacked bar each, until the first record."""
    recoveries = shown.recoveries[-RECOVERIES_MAX:] if shown else []
    if not recoveries:
        return None
    names = [f"attempt {r.attempt}" for r in recoveries]
    traces = [phase_trace(phase, recoveries, names) for phase in PHASE_STYLE]
    return {
        "data": [t for t in traces if t["x"]],
        "layout": layout(
            120 + 30 * len(recoveries),
            barmode="stack",
            legend=short_legend(66),
            xaxis=axis(title={"text": "ms after the failure", "standoff": 6}, **MILLISECONDS),
            yaxis=axis(
                type="category", categoryarray=names, categoryorder="array", autorange="reversed"
            ),
        ),
    }


def phase_trace(phase: str, recoveries: list[RecoveryView], names: list[str]) -> Json:
    color, pattern, label = PHASE_STYLE[phase]
    reached = [
        (name, view)
        for name, recovery in zip(names, recoveries, strict=True)
        for view in phases_named(phase, recovery)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "y": [name for name, _ in reached],
        "x": [round(view.duration_ms, 3) for _, view in reached],
        "customdata": [duration(view.duration_ms) for _, view in reached],
        "hovertemplate": f"<b>%{{y}}</b><br>{label}: %{{customdata}}<extra></extra>",
        "marker": {"color": color, "pattern": pattern_of(pattern), "line": {"width": 0}},
    }


def phases_named(phase: str, recovery: RecoveryView) -> list[PhaseView]:
    return [view for view in recovery.phases if view.phase == phase]
