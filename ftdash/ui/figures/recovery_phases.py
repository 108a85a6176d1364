"""The time that each phase of each recovery took."""

from ftdash.formats import duration
from ftdash.jobs.answers import PhaseView, RecoveryAxis, RecoveryView
from ftdash.ui.figures.style import Figure, Json, axis, layout, pattern_of, short_legend

RECOVERIES_MAX = 12
PHASE_STYLE = {  # phase of a recovery -> colour, pattern, label; in the order they are reached
    "detect": ("@phase-1", "", "detect"),
    "decide": ("@phase-2", "/", "decide"),
    "stop": ("@phase-3", "x", "stop"),
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
            xaxis=axis(ticksuffix=" ms", title={"text": "ms after the failure", "standoff": 6}),
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
