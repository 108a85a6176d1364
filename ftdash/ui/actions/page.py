"""The actions: one table of possible requests, and one view that calls the services.

Only people with the permission `jobs.operate` get here. A refusal comes back in the form, with
everything that was typed. A granted request is a row that the page shows until it ends, so you can
leave and find it again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.models import RequestKind
from ftdash.points.services.replays import outlook
from ftdash.requests.asking import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions import asks
from ftdash.ui.actions.before_restore import looked_at
from ftdash.ui.actions.change_form import ChangeForm
from ftdash.ui.actions.ending_forms import CancelForm, StopForm
from ftdash.ui.actions.forms import (
    ActionForm,
    AllowFaultsForm,
    KillSlotForm,
    ReplayForm,
    RestoreForm,
    SavepointForm,
    StartForm,
)
from ftdash.ui.actions.savepoint_forms import DisposeForm, LabelForm
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId

Ask = Callable[[PipelinePage, asks.Values, str], RequestId]

REFUSED = 422
"""The form was valid, but the service refused the request."""


@dataclass(frozen=True, slots=True)
class Action:
    kind: RequestKind
    title: str
    button: str
    form: type[ActionForm]
    ask: Ask


ACTIONS = {
    "checkpoint": Action(
        RequestKind.CHECKPOINT,
        "Trigger a checkpoint",
        "Trigger checkpoint",
        ActionForm,
        asks.checkpoint,
    ),
    "savepoint": Action(
        RequestKind.SAVEPOINT, "Take a savepoint", "Take savepoint", SavepointForm, asks.savepoint
    ),
    "stop": Action(
        RequestKind.STOP_WITH_SAVEPOINT,
        "Stop with a savepoint",
        "Stop with savepoint",
        StopForm,
        asks.stop,
    ),
    "cancel": Action(
        RequestKind.CANCEL, "Cancel the run", "Cancel the run", CancelForm, asks.cancel
    ),
    "change": Action(
        RequestKind.CHANGE_SETTINGS,
        "Change settings of the run",
        "Change settings",
        ChangeForm,
        asks.change,
    ),
    "kill": Action(RequestKind.KILL_SLOT, "Kill a slot", "Kill slot", KillSlotForm, asks.kill),
    "faults": Action(
        RequestKind.ALLOW_FAULTS,
        "Allow or forbid faults on purpose",
        "Save",
        AllowFaultsForm,
        asks.faults,
    ),
    "restore": Action(
        RequestKind.RESTORE,
        "Restore from a point, or rescale",
        "Restore",
        RestoreForm,
        asks.restore,
    ),
    "replay": Action(
        RequestKind.RESTORE, "Replay the quarantine", "Replay", ReplayForm, asks.replay
    ),
    "label": Action(RequestKind.LABEL, "Label a savepoint", "Set the label", LabelForm, asks.label),
    "dispose": Action(
        RequestKind.DISPOSE, "Dispose of a savepoint", "Delete its files", DisposeForm, asks.dispose
    ),
    "start": Action(RequestKind.SUBMIT, "Start from the beginning", "Start", StartForm, asks.start),
}


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    page = queries.pipeline_page(name)
    if page is None or action not in ACTIONS:
        raise Http404("There is no such pipeline or action.")
    chosen = ACTIONS[action]
    if request.method == "GET":
        return shown(request, page, action, chosen.form(initial=request.GET.dict(), page=page))
    form = chosen.form(request.POST, page=page)
    if not form.is_valid():
        return shown(request, page, action, form, status=REFUSED)
    try:
        request_id = chosen.ask(page, form.cleaned_data, request.user.get_username())
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return shown(request, page, action, form, status=REFUSED)
    return stored(request, page, chosen, request_id)


def shown(
    request: HttpRequest, page: PipelinePage, action: str, form: ActionForm, status: int = 200
) -> HttpResponse:
    """In the open dialog for htmx; without scripts, as a separate page."""
    chosen = ACTIONS[action]
    context = {
        "page": page,
        "slug": action,
        "action": chosen,
        "offer": page.actions[chosen.kind],
        "form": form,
        "is_destructive": form.is_destructive,
    }
    if isinstance(form, ReplayForm):
        context["outlook"] = outlook(pipeline_named(page.name))
    if isinstance(form, RestoreForm):
        context["verdict"] = None if request.htmx else looked_at(page, form)  # type: ignore[attr-defined]
    template = "actions/dialog.html" if request.htmx else "actions/page.html"  # type: ignore[attr-defined]
    return render(request, template, context, status=status)


def stored(
    request: HttpRequest, page: PipelinePage, action: Action, request_id: RequestId
) -> HttpResponse:
    if request.htmx:  # type: ignore[attr-defined]
        response = HttpResponse(status=204)
        note = f"Asked for: {action.title.lower()}. Its progress is on this page."
        return trigger_client_event(
            response, "requestStored", {"requestId": request_id, "note": note}
        )
    messages.success(request, f"Asked for: {action.title.lower()}.")
    return redirect(reverse("pipeline", args=[page.name]) + f"#request-{request_id}")
