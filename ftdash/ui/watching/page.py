"""The pages of watched queries: the form, one query, one of its batches, and its removal.

A query's page is live like that of a pipeline: an open tab fetches its regions again when a report
or a look into its directory has changed something. It reads rows, and no file of the query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.alerts.queries import SilenceView, silence_of_query
from ftdash.incidents.causes import Cause
from ftdash.runs.queries.freshness import Observation, observe
from ftdash.ui.actions.forms import PLAIN_TEXT, REASON_LENGTH_MAX
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.events import shared
from ftdash.ui.figures.style import Chart
from ftdash.ui.pipelines.page import number_or_none
from ftdash.ui.watching.charts import PHASE_NAMES, BatchRow, batch_row, charts
from ftdash.ui.watching.work_forms import ReasonedForm
from ftdash.watching import queries
from ftdash.watching.incident_signs import Limits
from ftdash.watching.progress import TOTAL, BatchFigures
from ftdash.watching.queries import BatchView, QueryDetail, RunEventView
from ftdash.watching.queries.incidents import WatchedIncidentView
from ftdash.watching.services import registration
from ftdash.watching.services.registration import Sighting
from pipelines.domain.errors import Rejected, Retryable

BATCHES_PER_PAGE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    detail: QueryDetail
    seen: Observation
    rows: list[BatchRow]
    charts: list[tuple[str, Chart]]
    newest: BatchFigures | None
    failure: RunEventView | None
    next_step: str
    silence: SilenceView | None  # holds back the messages about it

    phase_names = PHASE_NAMES

    @property
    def resource(self) -> str:
        return queries.resource(self.detail.brief.name)

    @property
    def data_at(self) -> datetime | None:
        known = filter(None, (self.detail.brief.as_of, self.detail.reading_at))
        return max(known, default=None)

    @property
    def more_incidents(self) -> list[WatchedIncidentView]:
        """The incidents that the page does not describe in words of its own."""
        said = (Cause.QUERY_FAILED, Cause.CHECKPOINT_DAMAGED)
        return [each for each in self.detail.incidents if each.cause not in said]


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def query(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "watching/page.html", {"view": query_view(request, name)})


@require_GET
@never_cache
@shared
def query_regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": query_view(request, name), "is_refresh": True}
    return render(request, "watching/regions.html", context)


def query_view(request: HttpRequest, name: str) -> QueryView:
    """Raises Http404 if no query of that name is watched."""
    page = number_or_none(request.GET.get("page")) or 1
    detail = queries.detail(name, page=page, per_page=BATCHES_PER_PAGE)
    if detail is None:
        raise Http404(f"There is no watched query named {name}.")
    failure = queries.run_failure(name, detail.brief.run_id) if detail.brief.failure else None
    return QueryView(
        detail=detail,
        seen=observe(),
        rows=[batch_row(each) for each in detail.batches.rows],
        charts=charts(detail.batches.rows, detail.interval_ms),
        newest=detail.brief.newest,
        failure=failure,
        next_step=_next_step(detail),
        silence=silence_of_query(name),
    )


def _next_step(detail: QueryDetail) -> str:
    """Says what to do after a failure."""
    if detail.found is None:
        return "Correct the cause and start the query again; it continues from its checkpoint."
    if detail.found.damage_count:
        return "Read what the doctor found below before you start the query again."
    newest = detail.found.newest_committed
    return (
        "The checkpoint is whole: correct the cause and start the query again; it continues from"
        f" batch {0 if newest is None else newest + 1}."
    )


@require_GET
@never_cache
def batch(request: HttpRequest, name: str, key: int) -> HttpResponse:
    found = queries.batch(name, key)
    if found is None:
        raise Http404(f"The watched query {name} has no such batch.")
    before, after = queries.neighbours(name, key)
    context = {
        "name": name,
        "batch": found,
        "before": before,
        "after": after,
        "phases": _phases(found),
        "lags": _lags(found),
        "failure": queries.run_failure(name, found.run_id),
    }
    return render(request, "watching/batch.html", context)


def _phases(found: BatchView) -> list[tuple[str, int, float]]:
    """Spark's name, ms, and the share of the batch; the longest first."""
    whole = found.figures.duration_ms or 0
    times = [(n, ms) for n, ms in found.figures.phases_ms.items() if n != "triggerExecution"]
    ordered = sorted(times, key=lambda each: -each[1])
    return [(name, ms, ms / whole if whole else 0.0) for name, ms in ordered]


def _lags(found: BatchView) -> list[tuple[str, int]]:
    """Partition and records that waited, the most first; with the source's number if several."""
    sources = found.figures.sources
    lags = [
        (f"source {index}, {partition}" if len(sources) > 1 else partition, behind)
        for index, source in enumerate(sources)
        for partition, behind in (source["lag"] or {}).items()
        if partition != TOTAL
    ]
    return sorted(lags, key=lambda each: -each[1])


class WatchForm(forms.Form):
    name = forms.CharField(
        label="Name",
        help_text="The name of the query in this dashboard.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    directory = forms.CharField(
        label="Checkpoint directory",
        required=False,
        help_text="The query's checkpointLocation: a directory of this server, or s3://bucket/key."
        " It is only read.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    event_log = forms.CharField(
        label="Event log",
        required=False,
        help_text="The application's file or directory below spark.eventLog.dir.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    query_id = forms.CharField(
        label="Query id",
        required=False,
        help_text="Needed only if an event log has several queries.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    output = forms.CharField(
        label="Output of the file sink",
        required=False,
        help_text="Lets the doctor judge the sink's log too.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    interval_s = forms.FloatField(
        label="Trigger interval in seconds",
        required=False,
        min_value=0.001,
        max_value=1e9,
        help_text="As in trigger(processingTime=...); without it the dashboard uses the start"
        " times of batches.",
    )
    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH_MAX,
        help_text="Kept in the audit log, with your name and the time.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )

    def sighting(self) -> Sighting:
        given = self.cleaned_data
        seconds = given["interval_s"]
        return Sighting(
            directory=given["directory"],
            event_log=given["event_log"],
            query_id=given["query_id"],
            output=given["output"],
            trigger_interval_ms=None if seconds is None else round(1000 * seconds),
        )


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def watch(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "watching/watch.html", {"form": WatchForm()})
    form = WatchForm(request.POST)
    if form.is_valid() and _is_watched(request, form):
        return redirect("watched-query", form.cleaned_data["name"])
    return render(request, "watching/watch.html", {"form": form}, status=REFUSED)


def _is_watched(request: HttpRequest, form: WatchForm) -> bool:
    """Returns True if the query is watched; otherwise the form shows the refusal."""
    given: dict[str, Any] = form.cleaned_data
    who = request.user.get_username()
    try:
        registration.watch(
            name=given["name"], seen=form.sighting(), requester=who, reason=given["reason"]
        )
    except (Rejected, Retryable) as refusal:
        form.add_error(None, str(refusal))
        return False
    messages.success(request, "The query is watched. Its files are only read.")
    return True


class LimitsForm(ReasonedForm):
    """Its fields are those of `incident_signs.Limits`."""

    late_after_s = forms.FloatField(
        label="Seconds without a committed batch",
        required=False,
        min_value=0.001,
        max_value=1e9,
        help_text="While the query has input. Empty: ten times its usual interval, at least a"
        " minute.",
    )
    lag_max = forms.IntegerField(
        label="Records that wait in its sources",
        required=False,
        min_value=1,
        max_value=2**53,
        help_text="Empty: an incident opens when the number keeps growing.",
    )
    batch_max_s = forms.FloatField(
        label="Seconds that a batch takes",
        required=False,
        min_value=0.001,
        max_value=1e9,
        help_text="Empty: no limit.",
    )
    field_order = Limits.__struct_fields__

    def limits(self) -> Limits:
        return Limits(**{each: self.cleaned_data[each] for each in Limits.__struct_fields__})


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def limits(request: HttpRequest, name: str) -> HttpResponse:
    """The form for the limits at which incidents of a query open."""
    found = queries.brief(name)
    if found is None:
        raise Http404(f"There is no watched query named {name}.")
    form = LimitsForm(request.POST or None, initial=msgspec.to_builtins(found.limits))
    if request.method == "POST" and form.is_valid():
        who, why = request.user.get_username(), form.cleaned_data["reason"]
        try:
            registration.set_limits(name=name, limits=form.limits(), requester=who, reason=why)
        except Rejected as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, "The limits are set. They hold from now on.")
            return redirect("watched-query", name)
    context = {
        "name": name,
        "form": form,
        "title": "Limits",
        "button": "Set the limits",
        "words": "An incident opens when the query is above a limit, and the channels of alerts"
        " get a message. It is over once the query has been below the limit for a minute.",
    }
    status = REFUSED if request.method == "POST" else 200
    return render(request, "watching/ask.html", context, status=status)


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def remove(request: HttpRequest, name: str) -> HttpResponse:
    if queries.brief(name) is None:
        raise Http404(f"There is no watched query named {name}.")
    context = {
        "name": name,
        "page": reverse("watched-query", args=[name]),
        "words": "The history that this dashboard keeps of the query is deleted. The query and its"
        " files are not touched, and its savepoints stay where they are; what its listener reports"
        " is ignored until you watch it again.",
        "done": f"ftdash no longer watches {name}; the query itself keeps running.",
    }
    return watch_no_longer(request, "watching/remove.html", context, registration.remove)


def watch_no_longer(
    request: HttpRequest, template: str, context: dict[str, str], remove: Callable[..., None]
) -> HttpResponse:
    """The form that ends the watching of a query or a cluster.

    `context` has `name`, `page` to go back to, `words` on what is deleted, and `done`.
    """
    form = ReasonedForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        who, why = request.user.get_username(), form.cleaned_data["reason"]
        try:
            remove(name=context["name"], requester=who, reason=why)
        except Rejected as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, context["done"])
            return redirect("fleet")
    status = REFUSED if request.method == "POST" else 200
    return render(request, template, {**context, "form": form}, status=status)
