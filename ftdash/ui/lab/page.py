"""The page of the lab: the modes side by side, in charts too, and the form for another lab.

The charts show the cost of each mode in control messages, and in time. Everyone may see the
results; starting a lab takes the admin role. A lab under way is a row, so you can leave and find it
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.lab import queries, services
from ftdash.lab.queries import Labs
from ftdash.runs.queries import pipelines as job_queries
from ftdash.runs.queries.freshness import Observation
from ftdash.ui.actions.forms import REASON_LENGTH_MAX
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.figures.style import Chart, Figure, Json, axis, escaped, layout, pattern_of
from ftdash.ui.pipelines.page import number_or_none
from pipelines.domain.errors import Rejected
from pipelines.lab.options import MODES, NUMBERS, LabOptions
from pipelines.lab.report import LabReport, ModeReport, comparison

LATENCIES = (
    ("latency_p50_ms", "p50", "@series-1", ""),
    ("latency_p99_ms", "p99", "@series-2", "/"),
)
"""For each bar: field of the run with faults, name, colour, pattern."""


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
    """Leaves out missing values instead of drawing zero, which a logarithmic axis cannot show."""
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


LATENCY_SENTENCE = (
    "Latency with faults: what comes out in a transaction waits for its checkpoint, and what"
    " happened during an outage waits for its end."
)


NOTHING = "Nothing was measured yet."


@dataclass(frozen=True, slots=True)
class LabPage:
    seen: Observation
    labs: Labs
    charts: list[Chart]


class LabForm(forms.Form):
    """A field for each number of the options, which decide what is valid."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        defaults = LabOptions()
        for name, (least, most, about) in NUMBERS.items():
            self.fields[name] = forms.IntegerField(
                label=name.removesuffix("_ms").replace("_", " ").capitalize(),
                initial=getattr(defaults, name),
                help_text=f"{about}; {least:,} to {most:,}",
            )
        self.fields["modes"] = forms.MultipleChoiceField(
            label="Modes",
            choices=[(mode.name, mode.name) for mode in MODES],
            initial=list(defaults.modes),
            widget=forms.CheckboxSelectMultiple(),
        )
        self.fields["reason"] = forms.CharField(label="Why", max_length=REASON_LENGTH_MAX)

    def options(self) -> LabOptions:
        numbers = {name: self.cleaned_data[name] for name in NUMBERS}
        return LabOptions(**numbers, modes=tuple(self.cleaned_data["modes"]))


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def lab(request: HttpRequest) -> HttpResponse:
    return render(request, "lab/page.html", {"page": lab_page(request)})


@require_GET
@never_cache
def lab_regions(request: HttpRequest) -> HttpResponse:
    context = {"page": lab_page(request), "is_refresh": True}
    return render(request, "lab/regions.html", context)


def lab_page(request: HttpRequest) -> LabPage:
    chosen = number_or_none(request.GET.get("lab"))
    labs = queries.labs(chosen)
    if chosen is not None and labs.shown is None:
        raise Http404(f"There is no lab {chosen}.")
    report = labs.shown.report if labs.shown else None
    charts = [
        Chart("control", _cost_sentence(report), lab_control(report)),
        Chart("latency", LATENCY_SENTENCE, lab_latency(report)),
    ]
    return LabPage(job_queries.observe(), labs, charts)


def _cost_sentence(report: LabReport | None) -> str:
    if report is None:
        return NOTHING
    return comparison(report) or "Acked and exactly-once were not both measured for their cost."


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def start_lab(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "lab/start.html", {"form": LabForm()})
    form = LabForm(request.POST)
    if form.is_valid() and _has_started(request, form):
        return redirect("lab")
    return render(request, "lab/start.html", {"form": form}, status=REFUSED)


def _has_started(request: HttpRequest, form: LabForm) -> bool:
    """Returns True if the lab was requested; otherwise the form shows the refusal."""
    who, why = request.user.get_username(), form.cleaned_data["reason"]
    try:
        services.start_lab(form.options(), requester=who, reason=why)
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return False
    messages.success(request, "Lab requested. Its progress is on this page.")
    return True
