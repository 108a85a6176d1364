"""Pages of savepoints, rewinds and looks into the state of a watched query.

A form only asks: a process does the work, and the work's page follows it to its end. The verdict on
a rewind is such work too, and its page has the button that carries the rewind out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from ftdash.runs.queries.freshness import Observation, observe
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.watching.work_forms import (
    BATCH,
    DeleteForm,
    KeepForm,
    ReasonedForm,
    RewindForm,
    StateForm,
    TakeForm,
)
from ftdash.watching import queries
from ftdash.watching.models import WorkKind
from ftdash.watching.queries import QueryBrief, QueryDetail, works
from ftdash.watching.queries.works import SavepointView, WorkView
from ftdash.watching.services import forks, savepoints, state
from pipelines.domain.errors import Rejected, Retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPage:
    brief: QueryBrief
    work: WorkView
    seen: Observation
    snippet: str
    rows: list[tuple[str, list[dict[str, Any]], int]]  # heading, rows, how many there are

    @property
    def resource(self) -> str:
        return queries.resource(self.brief.name)

    @property
    def can_be_forked(self) -> bool:
        return self.work.kind is WorkKind.PREFLIGHT and bool(self.work.result.get("is_possible"))

    @property
    def verdict(self) -> dict[str, Any] | None:
        result = self.work.result
        return result.get("verdict") or (result if "findings" in result else None)


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def take(request: HttpRequest, name: str) -> HttpResponse:
    detail = existing(name)
    form = TakeForm(
        request.POST or None, detail=detail, initial={"batch": request.GET.get("batch")}
    )
    context = {
        "title": "Take a savepoint",
        "button": "Take it",
        "words": "One committed batch is copied into a directory of its own, with a digest of every"
        " file. The query does not stop, and nothing is written to its files.",
    }
    return _submitted(
        request,
        form,
        detail,
        context,
        lambda **who: savepoints.ask_to_take(name, form.work_request(), **who),
    )


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def rewind(request: HttpRequest, name: str) -> HttpResponse:
    detail = existing(name)
    form = RewindForm(
        request.POST or None,
        request.FILES or None,
        detail=detail,
        initial=_beginning(request, detail),
    )
    context = {
        "title": "Rewind into a fork",
        "button": "Check",
        "words": "The fork is a new directory with a new query id. It continues from the batch that"
        " you choose, and has nothing from later batches. The query and its files stay as they"
        " are. First you see the verdict; the next page has the button.",
    }
    return _submitted(
        request,
        form,
        detail,
        context,
        lambda **who: forks.ask_for_verdict(name, form.work_request(), **who),
    )


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def look_at_state(request: HttpRequest, name: str) -> HttpResponse:
    detail = existing(name)
    chosen = request.GET.get("origin", "")
    form = StateForm(request.POST or None, detail=detail, initial={"origin": chosen})
    context = {
        "title": "Look into the state",
        "button": "Read it",
        "words": "Spark reads the rows in a process of its own, which takes some seconds to start."
        " It only reads; the query may run meanwhile.",
    }
    return _submitted(
        request,
        form,
        detail,
        context,
        lambda **who: state.ask_to_look(name, form.work_request(), **who),
    )


def _submitted(
    request: HttpRequest,
    form: Any,
    detail: QueryDetail,
    context: Mapping[str, object],
    ask: Callable[..., int],
) -> HttpResponse:
    """Shows a refusal in the form, with everything that the person typed."""
    name = detail.brief.name
    if request.method == "POST" and form.is_valid():
        try:
            who, why = request.user.get_username(), form.cleaned_data["reason"]
            return redirect("query-work", name, ask(requester=who, reason=why))
        except (Rejected, Retryable) as refusal:
            form.add_error(None, str(refusal))
    status = REFUSED if request.method == "POST" else 200
    given = {**context, "form": form, "name": name, "detail": detail}
    return render(request, "watching/ask.html", given, status=status)


def _beginning(request: HttpRequest, detail: QueryDetail) -> dict[str, str]:
    """The initial values of a rewind's form; the target is next to the query's directory."""
    found = detail.found
    newest = found.recommended.batch_id if found and found.recommended else None
    origin = request.GET.get("origin") or (f"{BATCH}:{newest}" if newest is not None else "")
    directory = detail.brief.directory.rstrip("/")
    return {"origin": origin, "target": f"{directory}-fork" if directory else ""}


@require_GET
@never_cache
def savepoint(request: HttpRequest, name: str, key: int) -> HttpResponse:
    forms_of = {"keep": KeepForm(prefix="keep"), "delete": DeleteForm(prefix="delete")}
    return _savepoint_page(request, name, key, forms_of)


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def act_on_savepoint(request: HttpRequest, name: str, key: int, action: str) -> HttpResponse:
    saved = existing_savepoint(name, key)
    who = request.user.get_username()
    keep, delete = KeepForm(prefix="keep"), DeleteForm(prefix="delete")
    try:
        if action == "verify":
            why = "asked for on the page"
            work = savepoints.ask_to_verify(name, saved.key, requester=who, reason=why)
            return redirect("query-work", name, work)
        if action == "keep" and (keep := KeepForm(request.POST, prefix="keep")).is_valid():
            given = keep.cleaned_data
            savepoints.keep(name, key, days=given["days"], requester=who, reason=given["reason"])
            messages.success(request, "The shelf life is set.")
            return redirect("query-savepoint", name, key)
        if action == "delete" and (delete := DeleteForm(request.POST, prefix="delete")).is_valid():
            given = delete.cleaned_data
            work = savepoints.ask_to_delete(
                name,
                key,
                confirmation=given["confirmation"],
                requester=who,
                reason=given["reason"],
            )
            return redirect("query-work", name, work)
    except (Rejected, Retryable) as refusal:
        form: forms.Form | None = {"keep": keep, "delete": delete}.get(action)
        if form is None:
            messages.error(request, str(refusal))
        else:
            form.add_error(None, str(refusal))
    shown: dict[str, ReasonedForm] = {"keep": keep, "delete": delete}
    return _savepoint_page(request, name, key, shown, status=REFUSED)


def _savepoint_page(
    request: HttpRequest, name: str, key: int, forms_of: Any, status: int = 200
) -> HttpResponse:
    context = {"saved": existing_savepoint(name, key), "name": name, **forms_of}
    return render(request, "watching/savepoint.html", context, status=status)


@require_GET
@never_cache
def manifest(request: HttpRequest, name: str, key: int) -> HttpResponse:
    saved = existing_savepoint(name, key)
    try:
        content = works.manifest(name, key)
    except (Rejected, Retryable) as refusal:
        messages.error(request, str(refusal))
        return redirect("query-savepoint", name, key)
    response = HttpResponse(content, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{name}-{saved.key}-manifest.json"'
    return response


@require_GET
@never_cache
def work(request: HttpRequest, name: str, key: int) -> HttpResponse:
    return render(request, "watching/work.html", {"view": work_page(name, key)})


@require_GET
@never_cache
def work_regions(request: HttpRequest, name: str, key: int) -> HttpResponse:
    context = {"view": work_page(name, key), "is_refresh": True}
    return render(request, "watching/work_regions.html", context)


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def fork(request: HttpRequest, name: str, key: int) -> HttpResponse:
    """Carries out exactly the rewind that the verdict judged."""
    page = work_page(name, key)
    try:
        who = request.user.get_username()
        made = forks.ask_as_judged(name, key, requester=who, reason=page.work.reason)
    except (Rejected, Retryable) as refusal:
        messages.error(request, str(refusal))
        return redirect("query-work", name, key)
    return redirect("query-work", name, made)


def work_page(name: str, key: int) -> WorkPage:
    """Raises Http404 if the query has no such work."""
    brief, found = queries.brief(name), works.work(name, key)
    if brief is None or found is None:
        raise Http404(f"The watched query {name} has no such work.")
    is_forked = found.kind is WorkKind.FORK and "location" in found.result
    return WorkPage(
        brief=brief,
        work=found,
        seen=observe(),
        snippet=works.line_to_change(found.result) if is_forked else "",
        rows=_rows(found),
    )


def _rows(found: WorkView) -> list[tuple[str, list[dict[str, Any]], int]]:
    result = found.result
    if "rows" not in result:
        return []
    if found.asked.get("other") is None:
        return [("Rows", result["rows"], result["count"])]
    first, second = (found.asked[each]["batch_id"] for each in ("place", "other"))
    return [
        (f"Only at batch {first}", result["rows"], result["count"]),
        (f"Only at batch {second}", result["gained"], result["gained_count"]),
    ]


def existing(name: str) -> QueryDetail:
    """Raises Http404 if no query of that name is watched."""
    detail = queries.detail(name, page=1, per_page=1)
    if detail is None:
        raise Http404(f"There is no watched query named {name}.")
    return detail


def existing_savepoint(name: str, key: int) -> SavepointView:
    """Raises Http404 if the query has no such savepoint."""
    saved = works.savepoint(name, key)
    if saved is None:
        raise Http404(f"The watched query {name} has no such savepoint.")
    return saved
