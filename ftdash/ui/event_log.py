"""The page of events and audit: what happened and what people did, newest first, as asked for."""

from dataclasses import dataclass, fields
from typing import Any

from asgiref.sync import sync_to_async
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
from ftdash.eventlog.lines import Asked, Cursor, Line, LineKind
from ftdash.eventlog.queries import LogPage
from ftdash.jobs import queries as job_queries
from ftdash.ui.downloads import csv_parts, download, json_parts
from ftdash.ui.formats import plural

LINES_PER_PAGE = 50
NONSENSE = "What was asked for cannot be understood; choose it on the page of events."
COLUMNS = [field.name for field in fields(Line) if field.name not in ("source", "row")]
EVERYTHING = "everything"
TIME = {"type": "datetime-local", "step": "1"}


@dataclass(frozen=True, slots=True)
class EventsPage:
    form: "AskedForm"
    log: LogPage
    is_first: bool
    address: str  # what was asked for, without the place, as a query string

    @property
    def sentence(self) -> str:
        if not self.log.lines:
            return "Nothing of that kind is kept."
        shown = plural(len(self.log.lines), "line")
        return f"{'The newest ' if self.is_first else ''}{shown}, newest first."


class AskedForm(forms.Form):
    """What is nonsense is shown with its error, and does not narrow down anything."""

    pipeline = forms.ChoiceField(required=False)
    kind = forms.ChoiceField(
        required=False,
        choices=[
            ("", "all but routine checkpoints"),
            (EVERYTHING, "everything"),
            *((kind.value, kind.value) for kind in LineKind),
        ],
    )
    actor = forms.ChoiceField(label="Asked by", required=False)
    since = forms.DateTimeField(
        label="Since (UTC)", required=False, widget=forms.DateTimeInput(attrs=TIME)
    )
    until = forms.DateTimeField(
        label="Until (UTC)", required=False, widget=forms.DateTimeInput(attrs=TIME)
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pipelines = [each.name for each in job_queries.fleet().pipelines]
        for name, values in (("pipeline", sorted(pipelines)), ("actor", queries.actors())):
            self.fields[name].choices = [  # type: ignore[attr-defined]
                ("", "all"),
                *((value, value) for value in values),
            ]

    def asked(self) -> Asked:
        self.is_valid()
        given = self.cleaned_data
        kind = given.get("kind", "")
        return Asked(
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
    return render(request, "eventlog/page.html", {"page": events_page(request.GET)})


@require_GET
@never_cache
def event_log_regions(request: HttpRequest) -> HttpResponse:
    context = {"page": events_page(request.GET), "is_refresh": True}
    return render(request, "eventlog/regions.html", context)


@require_GET
@never_cache
async def as_csv(request: HttpRequest) -> HttpResponseBase:
    asked = await _asked(request)
    if asked is None:
        return HttpResponseBadRequest(NONSENSE)
    parts = csv_parts(COLUMNS, queries.whole_log(asked))
    return download(parts, "events.csv", "text/csv; charset=utf-8")


@require_GET
@never_cache
async def as_json(request: HttpRequest) -> HttpResponseBase:
    asked = await _asked(request)
    if asked is None:
        return HttpResponseBadRequest(NONSENSE)
    parts = json_parts(queries.whole_log(asked))
    return download(parts, "events.json", "application/json")


async def _asked(request: HttpRequest) -> Asked | None:
    """None for what cannot be understood: nobody should take a file for what it is not."""
    form = await sync_to_async(AskedForm)(request.GET)
    asked = await sync_to_async(form.asked)()
    return None if form.errors else asked


def events_page(query: QueryDict) -> EventsPage:
    form = AskedForm(query)
    cursor = Cursor.parse(query.get("before", ""))
    address = query.copy()
    address.pop("before", None)
    return EventsPage(
        form=form,
        log=queries.log_page(form.asked(), cursor, LINES_PER_PAGE),
        is_first=cursor is None,
        address=address.urlencode(),
    )
