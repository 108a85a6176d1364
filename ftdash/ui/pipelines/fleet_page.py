"""The page of all pipelines: what needs attention, one line per cause, and the chosen rows."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.alerts import queries as alert_queries
from ftdash.flink_clusters import queries as flink_queries
from ftdash.incidents import queries as incident_queries
from ftdash.incidents.queries import IncidentView
from ftdash.requests import services
from ftdash.runs.fleet_answers import Concern, Fleet
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import sentences
from ftdash.ui.events import shared
from ftdash.ui.pipelines.fleet import FleetForm, LabelsForm, fleet_rows
from ftdash.ui.pipelines.page import number_or_none
from ftdash.ui.pipelines.saved_views import begins_with, context_of
from ftdash.watching import queries as watched_queries
from ftdash.watching.queries import incidents as watched_incidents

NUMBER = re.compile(r"\d[\d.,:]*( (ms|s|min|h|d)\b)?( \d+ (s|min|h)\b)?")


@require_GET
@never_cache
def fleet(request: HttpRequest) -> HttpResponse:
    if begin := begins_with(request):
        return redirect(f"{request.path}?{begin.query or 'all'}")
    return render(request, "fleet/page.html", fleet_context(request.GET) | context_of(request))


@require_GET
@never_cache
@shared
def fleet_regions(request: HttpRequest) -> HttpResponse:
    return render(request, "fleet/regions.html", fleet_context(request.GET) | {"is_refresh": True})


def fleet_context(query: QueryDict) -> dict[str, object]:
    shown, found = queries.fleet(), incident_queries.open_incidents()
    having = {each.pipeline for each in found}
    watched = watched_incidents.incidents()
    form = FleetForm(query, shown)
    page = number_or_none(query.get("page")) or 1
    return {
        "form": form,
        "rows": fleet_rows(shown, form, query.get("sort", ""), page, having),
        "fleet": shown,
        "sentence": sentences.fleet(shown, having),
        "firing": alert_queries.firing(),
        "incidents": found,
        "shared_incidents": incidents_by_cause(found),
        "having_incidents": having,
        "concerns": concerns_of(shown, having),
        "watched": watched_queries.watched(),
        "query_incidents": [each for each in watched if each.query],
        "flink_clusters": flink_queries.clusters(),
        "flink_incidents": [each for each in watched if each.flink_cluster],
    }


@dataclass(frozen=True, slots=True)
class SharedIncident:
    """Pipelines that have the same trouble for the same reason are one line."""

    first: IncidentView
    others: list[IncidentView]

    @property
    def alone(self) -> list[IncidentView]:
        return [] if self.others else [self.first]


def incidents_by_cause(found: list[IncidentView]) -> list[SharedIncident]:
    """In the order of the first of each cause; what differs in numbers only is the same."""
    shared: dict[tuple[str, str, str], SharedIncident] = {}
    for each in found:
        key = (each.cause.value, each.advice.title, same_words(each.text))
        if key in shared:
            shared[key].others.append(each)
        else:
            shared[key] = SharedIncident(each, [])
    return list(shared.values())


def same_words(text: str) -> str:
    """Ages and counts differ from one pipeline to the next, the cause does not."""
    return NUMBER.sub("#", text)


@dataclass(frozen=True, slots=True)
class SharedConcern:
    """What holds for several pipelines in the same words is said once."""

    text: str
    concern: Concern
    pipelines: list[str]


def concerns_of(shown: Fleet, having_incidents: Collection[str]) -> list[SharedConcern]:
    """Of the pipelines without an incident, the most pressing first."""
    found: dict[tuple[Concern, str], SharedConcern] = {}
    for each in shown.pipelines:
        if each.attention and each.name not in having_incidents:
            key = (each.concern, same_words(each.attention))
            shared = found.setdefault(key, SharedConcern(each.attention, each.concern, []))
            shared.pipelines.append(each.name)
    return list(found.values())


@permission_required("jobs.operate", raise_exception=True)
@require_http_methods(["GET", "POST"])
@never_cache
def labels(request: HttpRequest, name: str) -> HttpResponse:
    """The form of what a pipeline is grouped by."""
    given = queries.pipeline_labels(name)
    if given is None:
        raise Http404(f"There is no pipeline named {name}.")
    form = LabelsForm(request.POST or None, initial={"labels": ", ".join(given)})
    if request.method == "POST" and form.is_valid():
        services.label_pipeline(name, form.cleaned_data["labels"])
        return redirect("pipeline", name)
    status = 422 if form.errors else 200
    return render(request, "fleet/labels.html", {"form": form, "name": name}, status=status)
