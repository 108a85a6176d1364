"""The actions: one table of possible requests, and one view that calls the services.

Only people with the permission `jobs.operate` get here. A refusal comes back in the form, with
everything that was typed. A granted request is a row that the page shows until it ends, so you can
leave and find it again.

The service call of each action, from the values of its form: one function per action.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from ftdash.points.services import disposal
from ftdash.points.services import restore as point_services
from ftdash.points.services.replays import newest_point, outlook
from ftdash.points.services.restore import Restore
from ftdash.requests import services
from ftdash.requests.asking import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.action_forms import CancelForm, ChangeForm, DisposeForm, LabelForm, StopForm
from ftdash.ui.actions.before_restore import looked_at
from ftdash.ui.actions.forms import (
    ActionForm,
    AllowFaultsForm,
    KillSlotForm,
    ReplayForm,
    RestoreForm,
    SavepointForm,
    StartForm,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.status import ClaimMode, KillMoment, SavepointFormat

Values = dict[str, Any]
"""The cleaned values of a form."""


def checkpoint(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.request_checkpoint(pipeline=page.name, requester=who, reason=values["reason"])


def savepoint(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.request_savepoint(
        pipeline=page.name, requester=who, reason=values["reason"], **_of_savepoint(values)
    )


def stop(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.stop_with_savepoint(
        pipeline=page.name,
        requester=who,
        reason=values["reason"],
        drain=values["drain"],
        **_of_savepoint(values),
    )


def label(page: PipelinePage, values: Values, who: str) -> RequestId:
    return disposal.label_savepoint(
        pipeline=page.name,
        path=values["path"],
        label=values["label"],
        requester=who,
        reason=values["reason"],
    )


def dispose(page: PipelinePage, values: Values, who: str) -> RequestId:
    return point_services.dispose(
        pipeline=page.name, path=values["path"], requester=who, reason=values["reason"]
    )


def cancel(page: PipelinePage, values: Values, who: str) -> RequestId:
    if not values["with_savepoint"]:
        return services.cancel(pipeline=page.name, requester=who, reason=values["reason"])
    return services.cancel_with_savepoint(
        pipeline=page.name, requester=who, reason=values["reason"], **_of_savepoint(values)
    )


def change(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.change_settings(
        pipeline=page.name, settings=values["changes"], requester=who, reason=values["reason"]
    )


def kill(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.kill_slot(
        pipeline=page.name,
        slot=values["slot"],
        moment=KillMoment(values["moment"]),
        requester=who,
        reason=values["reason"],
    )


def faults(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.allow_faults(
        pipeline=page.name,
        is_allowed=values["is_allowed"],
        requester=who,
        reason=values["reason"],
    )


def restore(page: PipelinePage, values: Values, who: str) -> RequestId:
    asked = Restore(
        pipeline=page.name,
        path=values["path"],
        parallelism=values["parallelism"],
        allow_non_restored_state=values["allow_non_restored_state"],
        reads_files=False,
    )
    return point_services.restore(
        asked,
        requester=who,
        reason=values["reason"],
        claim_mode=ClaimMode(values["claim_mode"] or ClaimMode.NO_CLAIM),
    )


def replay(page: PipelinePage, values: Values, who: str) -> RequestId:
    asked = Restore(pipeline=page.name, path=newest_point(page.name), reads_files=False, replays=())
    return point_services.restore(asked, requester=who, reason=values["reason"])


def start(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.submit_pipeline(
        name=page.name,
        flow=page.flow,
        parallelism=values["parallelism"],
        max_parallelism=page.max_parallelism,
        parameters=page.parameters,
        settings=page.settings,
        allows_faults=page.allows_faults,
        requester=who,
        reason=values["reason"],
    )


def _of_savepoint(values: Values) -> Values:
    chosen = SavepointFormat(values["savepoint_format"] or SavepointFormat.CANONICAL)
    return {"savepoint_format": chosen, "label": values["label"]}


Ask = Callable[[PipelinePage, Values, str], RequestId]

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
        checkpoint,
    ),
    "savepoint": Action(
        RequestKind.SAVEPOINT, "Take a savepoint", "Take savepoint", SavepointForm, savepoint
    ),
    "stop": Action(
        RequestKind.STOP_WITH_SAVEPOINT,
        "Stop with a savepoint",
        "Stop with savepoint",
        StopForm,
        stop,
    ),
    "cancel": Action(RequestKind.CANCEL, "Cancel the run", "Cancel the run", CancelForm, cancel),
    "change": Action(
        RequestKind.CHANGE_SETTINGS,
        "Change settings of the run",
        "Change settings",
        ChangeForm,
        change,
    ),
    "kill": Action(RequestKind.KILL_SLOT, "Kill a slot", "Kill slot", KillSlotForm, kill),
    "faults": Action(
        RequestKind.ALLOW_FAULTS,
        "Allow or forbid faults on purpose",
        "Save",
        AllowFaultsForm,
        faults,
    ),
    "restore": Action(
        RequestKind.RESTORE,
        "Restore from a point, or rescale",
        "Restore",
        RestoreForm,
        restore,
    ),
    "replay": Action(RequestKind.RESTORE, "Replay the quarantine", "Replay", ReplayForm, replay),
    "label": Action(RequestKind.LABEL, "Label a savepoint", "Set the label", LabelForm, label),
    "dispose": Action(
        RequestKind.DISPOSE, "Dispose of a savepoint", "Delete its files", DisposeForm, dispose
    ),
    "start": Action(RequestKind.SUBMIT, "Start from the beginning", "Start", StartForm, start),
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
