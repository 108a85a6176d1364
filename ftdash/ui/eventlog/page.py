"""The page of events and audit: events and people's actions, newest first, filtered."""

from dataclasses import dataclass, fields

from django import forms
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    QueryDict,
)
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.eventlog import queries
from ftdash.eventlog.queries import Cursor, EventFilter, Line, LineKind, LogPage
from ftdash.formats import plural
from ftdash.runs.queries import pipelines as job_queries
from ftdash.runs.queries.freshness import Observation
from ftdash.ui.downloads import csv_parts, download, json_parts

LINES_PER_PAGE = 50
NONSENSE = "This filter is not valid; choose one on the page Events."
COLUMNS = [field.name for field in fields(Line) if field.name not in ("source", "row")]
EVERYTHING = "everything"
TIME = {"type": "datetime-local", "step": "1", "autocomplete": "off"}
"""No autocomplete: a browser would refill what was typed as if it were in the viewer's zone."""

ZONE = "UTC"
"""The default without scripts; the page's script sends the viewer's zone, and uses it."""


@dataclass(frozen=True, slots=True)
class EventsPage:
    form: "FilterForm"
    seen: Observation
    log: LogPage
    is_first: bool
    address: str  # the filter as a query string, without the place

    @property
    def sentence(self) -> str:
        if not self.log.lines:
            return "Nothing of that kind is kept."
        shown = plural(len(self.log.lines), "line")
        return f"{'The newest ' if self.is_first else ''}{shown}, newest first."


class FilterForm(forms.Form):
    """The form shows an invalid field with its error, and does not filter by it.

    A person without a line in the log is a valid filter, and finds nothing.
    """

    pipeline = forms.CharField(required=False, widget=forms.Select())
    kind = forms.ChoiceField(
        required=False,
        choices=[
            ("", "all but routine checkpoints"),
            (EVERYTHING, "everything"),
            *((kind.value, kind.value) for kind in LineKind),
        ],
    )
    actor = forms.CharField(label="Asked by", required=False, widget=forms.Select())
    since = forms.DateTimeField(
        required=False, help_text=ZONE, widget=forms.DateTimeInput(attrs=TIME)
    )
    until = forms.DateTimeField(
        required=False, help_text=ZONE, widget=forms.DateTimeInput(attrs=TIME)
    )

    def offer_choices(self) -> None:
        """Call it only for a visible form: finding all people who ever asked reads a lot."""
        self._offer("pipeline", job_queries.pipeline_names())
        self._offer("actor", queries.actors())

    def _offer(self, name: str, values: list[str]) -> None:
        given = self.data.get(name) or None
        unknown = [] if given is None or given in values else [given]
        self.fields[name].widget.choices = [
            ("", "all"),
            *((value, value) for value in (*values, *unknown)),
        ]

    def filters(self) -> EventFilter:
        self.is_valid()
        given = self.cleaned_data
        kind = given.get("kind", "")
        return EventFilter(
            pipeline=given.get("pipeline") or None,
            kind=LineKind(kind) if kind in set(LineKind) else None,
            with_routine=bool(kind),
            actor=given.get("actor") or None,
            since=given.get("since"),
            until=given.get("until"),
        )


@require_GET
@never_cache
def event_log(request: HttpRequest) -> HttpResponse:
    page = events_page(request.GET)
    page.form.offer_choices()
    return render(request, "eventlog/page.html", {"page": page})


@require_GET
@never_cache
def event_log_regions(request: HttpRequest) -> HttpResponse:
    context = {"page": events_page(request.GET), "is_refresh": True}
    return render(request, "eventlog/regions.html", context)


@require_GET
@never_cache
async def as_csv(request: HttpRequest) -> HttpResponseBase:
    filters = _filter_of(request)
    if filters is None:
        return HttpResponseBadRequest(NONSENSE)
    parts = csv_parts(COLUMNS, queries.whole_log(filters))
    return download(parts, "events.csv", "text/csv; charset=utf-8")


@require_GET
@never_cache
async def as_json(request: HttpRequest) -> HttpResponseBase:
    filters = _filter_of(request)
    if filters is None:
        return HttpResponseBadRequest(NONSENSE)
    parts = json_parts(queries.whole_log(filters))
    return download(parts, "events.json", "application/json")


def _filter_of(request: HttpRequest) -> EventFilter | None:
    """Returns None for an invalid filter, which a file must not silently ignore."""
    form = FilterForm(request.GET)
    filters = form.filters()
    return None if form.errors else filters


def events_page(query: QueryDict) -> EventsPage:
    form = FilterForm(query)
    cursor = Cursor.parse(query.get("before", ""))
    address = query.copy()
    address.pop("before", None)
    return EventsPage(
        form=form,
        seen=job_queries.observe(),
        log=queries.log_page(form.filters(), cursor, LINES_PER_PAGE),
        is_first=cursor is None,
        address=address.urlencode(),
    )
