"""The actions: one table of the forms, and one view that asks for what a form holds.

Only people with the permission `jobs.operate` get here. A refusal comes back in the form, with
everything that was typed. A granted request is a row that the page shows until it ends, so you can
leave and find it again.
"""

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from ftdash.jobs.answers import PipelinePage
from ftdash.points.services.restore import outlook
from ftdash.requests.asking import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.forms import ActionForm
from ftdash.ui.actions.run_forms import (
    AllowFaultsForm,
    CancelForm,
    ChangeForm,
    CheckpointForm,
    DisposeForm,
    KillSlotForm,
    LabelForm,
    StopForm,
    TakeSavepointForm,
)
from ftdash.ui.actions.start_forms import ReplayForm, RestoreForm, StartForm, looked_at
from ftdash.ui.actions.upgrade_form import UpgradeForm
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId

REFUSED = 422
"""The form was valid, but the service refused the request."""

ACTIONS: dict[str, type[ActionForm]] = {
    "checkpoint": CheckpointForm,
    "savepoint": TakeSavepointForm,
    "stop": StopForm,
    "upgrade": UpgradeForm,
    "restore": RestoreForm,
    "start": StartForm,
    "change": ChangeForm,
    "kill": KillSlotForm,
    "cancel": CancelForm,
    "faults": AllowFaultsForm,
    "replay": ReplayForm,
    "label": LabelForm,
    "dispose": DisposeForm,
}
"""By the last part of their address, in the order of their buttons."""


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    page = queries.pipeline_page(name)
    if page is None or action not in ACTIONS:
        raise Http404("There is no such pipeline or action.")
    chosen = ACTIONS[action]
    if request.method == "GET":
        return shown(request, page, action, chosen(initial=request.GET.dict(), page=page))
    form = chosen(request.POST, request.FILES, page=page)
    if not form.is_valid():
        return shown(request, page, action, form, status=REFUSED)
    try:
        request_id = form.ask(request.user.get_username())
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return shown(request, page, action, form, status=REFUSED)
    return stored(request, page, form, request_id)


def shown(
    request: HttpRequest, page: PipelinePage, action: str, form: ActionForm, status: int = 200
) -> HttpResponse:
    """In the open dialog for htmx; without scripts, as a separate page."""
    context = {
        "page": page,
        "slug": action,
        "offer": page.actions[form.command.kind],
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
    request: HttpRequest, page: PipelinePage, form: ActionForm, request_id: RequestId
) -> HttpResponse:
    if request.htmx:  # type: ignore[attr-defined]
        response = HttpResponse(status=204)
        note = f"Asked for: {form.title.lower()}. Its progress is on this page."
        return trigger_client_event(
            response, "requestStored", {"requestId": request_id, "note": note}
        )
    messages.success(request, f"Asked for: {form.title.lower()}.")
    return redirect(reverse("pipeline", args=[page.name]) + f"#request-{request_id}")
