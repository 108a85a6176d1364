"""The page of all pipelines: what needs attention, one line per cause, and the chosen rows.

A person saves what they find, filter, group and sort by as a view: the query of the page's address
under a name. Only that person sees and changes it, and it needs no role. One view may be the
default, with which the page begins when its address has no choice.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from ftdash.accounts import queries as account_queries
from ftdash.accounts import services as account_services
from ftdash.accounts.queries import ViewOfFleet
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
from ftdash.watching import queries as watched_queries
from ftdash.watching.queries import incidents as watched_incidents
from pipelines.domain.errors import Rejected

NUMBER = re.compile(r"\d[\d.,:]*( (ms|s|min|h|d)\b)?( \d+ (s|min|h)\b)?")
CHOICES = ("q", "label", "state", "group", "sort")
"""What a view keeps; the page of a long list it does not."""


@require_GET
@never_cache
def fleet(request: HttpRequest) -> HttpResponse:
    if begin := begins_with(request):
        return redirect(f"{request.path}?{begin.query or 'all'}")
    return render(request, "fleet/page.html", fleet_context(request.GET) | views_of_person(request))


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


class ViewForm(forms.Form):
    name = forms.CharField(label="Name", required=False)  # the service says what a name needs
    is_default = forms.BooleanField(label="Begin with it", required=False)


def query_of(given: QueryDict) -> str:
    """The choices alone, in one order, so that equal choices are one view."""
    kept = QueryDict(mutable=True)
    for name in CHOICES:
        if value := given.get(name):
            kept[name] = value
    return kept.urlencode()


def begins_with(request: HttpRequest) -> ViewOfFleet | None:
    """The default view of the person, if the address leaves open what to show."""
    if request.GET:
        return None
    own = account_queries.saved_views(request.user.get_username())
    return next((each for each in own if each.is_default), None)


def views_of_person(request: HttpRequest) -> dict[str, object]:
    """For the page of all pipelines; not for its regions, which people share."""
    own, now = account_queries.saved_views(request.user.get_username()), query_of(request.GET)
    return {
        "views": own,
        "view_now": next((each for each in own if each.query == now), None),
        "query_now": now,
    }


@require_GET
@never_cache
def saved_views(request: HttpRequest) -> HttpResponse:
    own = account_queries.saved_views(request.user.get_username())
    return render(request, "fleet/views.html", {"views": own})


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    query = query_of(QueryDict(request.POST.get("query", "")))
    form = ViewForm(request.POST)
    form.is_valid()
    name, is_default = form.cleaned_data["name"], form.cleaned_data["is_default"]
    try:
        account_services.save_view(request.user.get_username(), name, query, is_default=is_default)
    except Rejected as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, f"The view {name.strip()} is saved.")
    return redirect(f"{reverse('fleet')}?{query or 'all'}")


@require_POST
def change_view(request: HttpRequest, key: int) -> HttpResponse:
    form = ViewForm(request.POST)
    form.is_valid()
    person, name = request.user.get_username(), form.cleaned_data["name"]
    try:
        if "delete" in request.POST:
            account_services.delete_view(person, key)
        else:
            account_services.change_view(
                person, key, name, is_default=form.cleaned_data["is_default"]
            )
    except Rejected as refusal:
        messages.error(request, str(refusal))
    return redirect("saved-views")
