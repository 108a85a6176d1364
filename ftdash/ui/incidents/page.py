"""The pages of incidents: those that are open, those that are over, and one with its evidence."""

from datetime import timedelta

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.alerts import queries as alert_queries
from ftdash.eventlog.queries import EventFilter, log_page
from ftdash.incidents import queries, services
from ftdash.incidents.causes import Advice, Place
from ftdash.incidents.queries import IncidentView
from ftdash.runs.queries import pipelines as pipeline_queries
from ftdash.ui.pipelines.page import number_or_none
from ftdash.watching.queries import incidents as watched_incidents
from pipelines.domain.errors import Rejected

PER_PAGE = 25
LINES_MAX = 200
BEFORE = timedelta(minutes=1)
"""The cause of an incident is often in the log before its first sign."""

_LABELS = {
    Place.RESTORE: "Failures, and which point to restore",
    Place.METRICS: "Metrics of the operators",
    Place.CHECKPOINTS: "The newest checkpoints",
    Place.GUARANTEE: "What waits for its commit",
}


class NoteForm(forms.Form):
    text = forms.CharField(
        label="Note",
        required=False,  # the service says what a note needs, to programs too
        widget=forms.Textarea(attrs={"rows": 2, "maxlength": services.NOTE_LENGTH_MAX}),
        help_text="What you have found, or that you are working on it. Everyone can read it.",
    )


@require_GET
@never_cache
def incidents(request: HttpRequest) -> HttpResponse:
    return render(request, "incidents/page.html", _list_context(request))


@require_GET
@never_cache
def incidents_regions(request: HttpRequest) -> HttpResponse:
    context = _list_context(request) | {"is_refresh": True}
    return render(request, "incidents/regions.html", context)


@require_GET
@never_cache
def incident(request: HttpRequest, key: int) -> HttpResponse:
    context = _context(key) | {"form": NoteForm()}
    return render(request, "incidents/one.html", context)


@require_GET
@never_cache
def incident_regions(request: HttpRequest, key: int) -> HttpResponse:
    return render(request, "incidents/one_regions.html", _context(key) | {"is_refresh": True})


@require_GET
@never_cache
def post_mortem(request: HttpRequest, key: int) -> HttpResponse:
    text = render_to_string("incidents/post_mortem.md", _context(key))
    response = HttpResponse(text, content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="incident-{key}.md"'
    return response


@require_POST
@permission_required("jobs.operate", raise_exception=True)
def add_note(request: HttpRequest, key: int) -> HttpResponse:
    form = NoteForm(request.POST)
    if not form.is_valid():
        messages.error(request, str(form.errors["text"][0]))
        return redirect("incident", key=key)
    try:
        services.note(key, request.user.get_username(), form.cleaned_data["text"])
    except Rejected as error:
        messages.error(request, str(error))
    return redirect("incident", key=key)


def address_of(advice: Advice, pipeline: str) -> str:
    """Returns the address for the next step; empty if that is not a page of the dashboard."""
    return reverse(advice.place.value, args=[pipeline]) if advice.place else ""


def _list_context(request: HttpRequest) -> dict[str, object]:
    page = number_or_none(request.GET.get("page")) or 1
    return {
        "seen": pipeline_queries.observe(),
        "open": queries.open_incidents(),
        "history": queries.history(page, PER_PAGE),
        "of_watched": watched_incidents.incidents(with_closed=True),
    }


def _context(key: int) -> dict[str, object]:
    """Raises Http404 if the incident does not exist."""
    found = queries.incident(key)
    if found is None:
        raise Http404(f"There is no incident {key}.")
    return {
        "seen": pipeline_queries.observe(),
        "incident": found,
        "evidence": queries.evidence(key),
        "alerts": alert_queries.of_incident(key),
        "lines": _lines(found),
        "address": address_of(found.advice, found.pipeline),
        "address_label": _LABELS.get(found.advice.place, ""),
    }


def _lines(found: IncidentView) -> list[object]:
    """Returns the lines of the event log about the incident, oldest first."""
    until = (found.closed_at or timezone.now()) + timedelta(seconds=1)
    event_filter = EventFilter(pipeline=found.pipeline, since=found.opened_at - BEFORE, until=until)
    return list(reversed(log_page(event_filter, None, LINES_MAX).lines))
