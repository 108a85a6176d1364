"""The page of all pipelines: what needs attention, one line per cause, and the chosen rows.

A person saves a search with its filters, grouping and order as a view: the query of the page's
address under a name. Only that person sees and changes it, and it needs no role. One view may be
the default, which the page shows when its address has no choice.

The address keeps every choice, so that a link shows a colleague the same rows. Labels, which can
group pipelines, are texts that people give them on a form of its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

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
from ftdash.runs.fleet_answers import Concern, Fleet, PipelineSummary
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import sentences
from ftdash.ui.events import shared
from ftdash.ui.pipelines.page import number_or_none
from ftdash.watching import queries as watched_queries
from ftdash.watching.queries import incidents as watched_incidents
from pipelines.domain.errors import Rejected
from pipelines.domain.texts import LABEL_LENGTH_MAX

ROWS_MAX = 50
"""The most rows on a page: as many as a person reads. A search finds the others."""

LABELS_MAX = 10
UNLABELLED = "without a label"


@dataclass(frozen=True, slots=True)
class Order:
    key: str
    label: str
    of: Callable[[PipelineSummary], float | str | None]


ORDERS = [
    Order("name", "Pipeline", lambda each: each.name),
    Order("state", "State", lambda each: each.state.value),
    Order("checkpoint", "Since checkpoint", lambda each: _moment(each.last_completed_at)),
    Order("output", "Since output", lambda each: _moment(each.last_committed_at)),
    Order("duration", "Checkpoint duration", lambda each: _duration_ms(each)),
    Order("throughput", "Throughput", lambda each: each.records_per_s),
    Order(
        "backpressure",
        "Backpressure",
        lambda each: each.pulse.backpressured_ratio if each.pulse else None,
    ),
    Order("restarts", "Restarts", lambda each: each.restart_count),
    Order(
        "replay",
        "If it died now",
        lambda each: each.pulse.to_recover_ms if each.pulse else None,
    ),
    Order("guarantee", "Guarantee", lambda each: each.guarantee),
    Order("report", "As of", lambda each: _moment(each.as_of)),
]
"""The columns of the table. Ages sort as they read: the longest is the oldest moment."""

GROUPS = {"label": "label", "state": "state", "flow": "flow"}


def _moment(at: datetime | None) -> float | None:
    return None if at is None else -at.timestamp()


def _duration_ms(each: PipelineSummary) -> float | None:
    durations = each.pulse.durations_ms if each.pulse else []
    return durations[-1] if durations else None


@dataclass(frozen=True, slots=True)
class Heading:
    """`choice` is the order that choosing it leads to; None means the most pressing first."""

    label: str
    key: str
    direction: str  # in ARIA's words; empty if it does not order the rows
    choice: str | None
    is_number: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the rows under one heading; the name is empty if they are not grouped."""

    name: str
    count: int  # on all pages
    waiting: int  # those among them that need attention
    rows: list[PipelineSummary]  # on this page


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    groups: list[Group]
    found: int
    total: int
    page: int
    pages: int
    headings: list[Heading]
    labels: list[str]  # of all pipelines

    @property
    def is_part(self) -> bool:
        return self.found < self.total


class FleetForm(forms.Form):
    """The choices, as the address has them."""

    q = forms.CharField(
        label="Find",
        required=False,
        max_length=200,
        widget=forms.TextInput({"type": "search", "placeholder": "name, flow or label"}),
    )
    label = forms.ChoiceField(required=False)
    state = forms.ChoiceField(required=False)
    group = forms.ChoiceField(
        label="Group by",
        required=False,
        choices=[("", "nothing"), *GROUPS.items()],
    )

    def __init__(self, query: QueryDict, fleet: Fleet) -> None:
        super().__init__(query)
        states = Counter(each.state.value for each in fleet.pipelines)
        labels = Counter(label for each in fleet.pipelines for label in each.labels)
        self.choose("state", {"attention": "needs attention"}, states)
        self.choose("label", {}, labels)
        self.is_valid()

    def choose(self, field: str, first: dict[str, str], counted: Counter[str]) -> None:
        named = [(each, f"{each} ({counted[each]})") for each in sorted(counted)]
        widget = forms.ChoiceField(required=False, choices=[("", "any"), *first.items(), *named])
        self.fields[field] = widget

    def given(self, field: str) -> str:
        """Returns the choice; empty if the form does not know the address's value."""
        return str(self.cleaned_data.get(field) or "")

    @property
    def is_chosen(self) -> bool:
        return any(self.given(field) for field in self.fields)


def fleet_rows(
    fleet: Fleet, form: FleetForm, order: str, page: int, having_incidents: Collection[str]
) -> FleetRows:
    """Selects, sorts and groups the rows of one page; a page beyond the last gives the last page.

    `order` is a key of `ORDERS`, with `-` for the greatest first; otherwise the most pressing
    come first.
    """

    def waits(each: PipelineSummary) -> bool:
        return each.concern is not Concern.NONE or each.name in having_incidents

    def is_found(each: PipelineSummary) -> bool:
        state, label = form.given("state"), form.given("label")
        wanted = form.given("q").casefold().split()
        text = " ".join((each.name, each.flow, *each.labels)).casefold()
        return (
            all(word in text for word in wanted)
            and (not label or label in each.labels)
            and (not state or (waits(each) if state == "attention" else each.state == state))
        )

    found = _sorted([each for each in fleet.pipelines if is_found(each)], order, waits)
    grouped = _grouped(found, form.given("group"))
    lines = [(name, each) for name, rows in grouped.items() for each in rows]
    pages = max(1, -(-len(lines) // ROWS_MAX))
    page = max(1, min(page, pages))
    shown = lines[ROWS_MAX * (page - 1) : ROWS_MAX * page]
    groups = [
        Group(
            name,
            len(rows),
            sum(map(waits, rows)),
            [each for group, each in shown if group == name],
        )
        for name, rows in grouped.items()
    ]
    return FleetRows(
        groups=[group for group in groups if group.rows],
        found=len(found),
        total=len(fleet.pipelines),
        page=page,
        pages=pages,
        headings=[_heading(each, order) for each in ORDERS],
        labels=sorted({label for each in fleet.pipelines for label in each.labels}),
    )


def _sorted(
    rows: list[PipelineSummary], order: str, waits: Callable[[PipelineSummary], bool]
) -> list[PipelineSummary]:
    """Sorts the rows; unknown values come last, in either direction."""
    by = next((each for each in ORDERS if each.key == order.removeprefix("-")), None)
    if by is None:
        return sorted(rows, key=lambda each: not waits(each))  # stable: by concern, then by name
    known = [each for each in rows if by.of(each) not in (None, "")]
    known.sort(key=by.of, reverse=order.startswith("-"))  # type: ignore[arg-type]
    return [*known, *(each for each in rows if by.of(each) in (None, ""))]


def _grouped(rows: list[PipelineSummary], by: str) -> dict[str, list[PipelineSummary]]:
    """Groups rows in alphabetical order; a pipeline with several labels is in the group of each."""
    if by not in GROUPS:
        return {"": rows}
    found: dict[str, list[PipelineSummary]] = {}
    for each in rows:
        for name in _names(each, by):
            found.setdefault(name, []).append(each)
    return dict(sorted(found.items(), key=lambda group: (group[0] == UNLABELLED, group[0])))


def _names(each: PipelineSummary, by: str) -> list[str]:
    match by:
        case "label":
            return each.labels or [UNLABELLED]
        case "state":
            return [each.state.value]
        case _:
            return [each.flow]


NUMBERS = {"checkpoint", "output", "throughput", "backpressure", "restarts", "replay", "report"}


def _heading(by: Order, order: str) -> Heading:
    """Choosing a heading leads to the greatest first, then to the least, then back."""
    is_number = by.key in NUMBERS
    if order == f"-{by.key}":
        return Heading(by.label, by.key, "descending", by.key, is_number)
    if order == by.key:
        return Heading(by.label, by.key, "ascending", None, is_number)
    return Heading(by.label, by.key, "", f"-{by.key}", is_number)


class LabelsForm(forms.Form):
    labels = forms.CharField(
        required=False,
        max_length=LABELS_MAX * (LABEL_LENGTH_MAX + 2),
        help_text="Separated by commas, such as: payments, critical",
    )

    def clean_labels(self) -> list[str]:
        found = {each.strip() for each in self.cleaned_data["labels"].split(",")} - {""}
        if len(found) > LABELS_MAX:
            raise forms.ValidationError(
                f"{len(found)} labels are more than {LABELS_MAX}; take some away."
            )
        if any(len(each) > LABEL_LENGTH_MAX for each in found):
            raise forms.ValidationError(
                f"A label may have {LABEL_LENGTH_MAX} characters; shorten the longest."
            )
        return sorted(found)


NUMBER = re.compile(r"\d[\d.,:]*( (ms|s|min|h|d)\b)?( \d+ (s|min|h)\b)?")
CHOICES = ("q", "label", "state", "group", "sort")
"""The choices that a view keeps; it does not keep the page of a long list."""


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
    """One line for pipelines that have the same problem for the same reason."""

    first: IncidentView
    others: list[IncidentView]

    @property
    def alone(self) -> list[IncidentView]:
        return [] if self.others else [self.first]


def incidents_by_cause(found: list[IncidentView]) -> list[SharedIncident]:
    """Groups incidents, in order, whose causes and texts differ at most in numbers."""
    shared: dict[tuple[str, str, str], SharedIncident] = {}
    for each in found:
        key = (each.cause.value, each.advice.title, same_words(each.text))
        if key in shared:
            shared[key].others.append(each)
        else:
            shared[key] = SharedIncident(each, [])
    return list(shared.values())


def same_words(text: str) -> str:
    """Replaces numbers: ages and counts differ between pipelines, but the cause does not."""
    return NUMBER.sub("#", text)


@dataclass(frozen=True, slots=True)
class SharedConcern:
    """A concern that several pipelines have in the same words, said once."""

    text: str
    concern: Concern
    pipelines: list[str]


def concerns_of(shown: Fleet, having_incidents: Collection[str]) -> list[SharedConcern]:
    """Returns the concerns of pipelines without an incident, the most pressing first."""
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
    """The form for the labels of a pipeline."""
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
    """Keeps only the choices, in one order, so that equal choices are one view."""
    kept = QueryDict(mutable=True)
    for name in CHOICES:
        if value := given.get(name):
            kept[name] = value
    return kept.urlencode()


def begins_with(request: HttpRequest) -> ViewOfFleet | None:
    """Returns the person's default view, if the address has no query."""
    if request.GET:
        return None
    own = account_queries.saved_views(request.user.get_username())
    return next((each for each in own if each.is_default), None)


def views_of_person(request: HttpRequest) -> dict[str, object]:
    """Context for the page of all pipelines, but not for its regions, which people share."""
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
