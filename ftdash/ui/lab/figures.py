"""The charts of a lab: the cost of each mode in control messages, and in time."""

from collections.abc import Sequence

from ftdash.ui.figures.style import Figure, Json, axis, escaped, layout, pattern_of
from pipelines.lab.report import LabReport, ModeReport

LATENCIES = (
    ("latency_p50_ms", "p50", "@series-1", ""),
    ("latency_p99_ms", "p99", "@series-2", "/"),
)
"""Field of the run with faults, name, colour, pattern."""


def lab_latency(report: LabReport | None) -> Figure | None:
    """The time from an event until it was visible, in the run with faults."""
    if report is None or not report.modes:
        return None
    return {
        "data": [_latencies(report.modes, *each) for each in LATENCIES],
        "layout": _bars(report, "from a view until<br>it could be seen", " ms"),
    }


def lab_control(report: LabReport | None) -> Figure | None:
    """Barriers and acks per record in the undisturbed runs, on a logarithmic axis."""
    modes = [] if report is None else [mode for mode in report.modes if mode.cost is not None]
    if report is None or not modes:
        return None
    records = report.options.records
    barriers = [mode.cost.barriers / records for mode in modes if mode.cost]
    acks = [mode.cost.acker_ids / records for mode in modes if mode.cost]
    title = "control messages<br>a record (logarithmic)"
    figure_layout = _bars(report, title, "")
    figure_layout["xaxis"] = axis(
        type="log", dtick=1, exponentformat="none", title={"text": title, "standoff": 6}
    )
    return {
        "data": [
            _trace(modes, barriers, "barriers", "@series-3", "", "%{x:.6f}"),
            _trace(modes, acks, "acks", "@series-4", "x", "%{x:.3f}"),
        ],
        "layout": figure_layout,
    }


def _latencies(modes: list[ModeReport], field: str, name: str, color: str, pattern: str) -> Json:
    waited = [getattr(mode.faulted, field) for mode in modes]
    return _trace(modes, waited, name, color, pattern, "%{x:,.0f} ms")


def _trace(
    modes: list[ModeReport],
    values: Sequence[float | None],
    name: str,
    color: str,
    pattern: str,
    written: str,
) -> Json:
    """Leaves out missing values instead of drawing zero, which a logarithmic axis lacks."""
    drawn = [
        (escaped(mode.mode), value) for mode, value in zip(modes, values, strict=True) if value
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [mode for mode, _ in drawn],
        "x": [value for _, value in drawn],
        "hovertemplate": f"<b>%{{y}}</b><br>{name}: {written}<extra></extra>",
        "marker": {"color": color, "pattern": pattern_of(pattern), "line": {"width": 0}},
    }


def _bars(report: LabReport, title: str, suffix: str) -> Json:
    names = [escaped(mode.mode) for mode in report.modes]
    return layout(
        96 + 44 * len(names),
        barmode="group",
        xaxis=axis(ticksuffix=suffix, title={"text": title, "standoff": 6}),
        yaxis=axis(
            type="category", categoryarray=names, categoryorder="array", autorange="reversed"
        ),
    )
