"""The actions: one table of the forms, the view that sends a form's request, and submission.

Only people with the permission `jobs.operate` get here. A refusal comes back in the form, with
everything that the person typed. A granted request is a row that the page shows until it ends, so
you can leave and find it again.

A submission starts a pipeline that does not exist yet. Its form is made from the flow's parameters
and knows the syntax of the settings, one `key: value` per line. The engine's settings table decides
what is valid.
"""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.validation import parameters_of
from ftdash.points.services.restore import outlook
from ftdash.requests import services
from ftdash.requests.storing import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.forms import PLAIN_TEXT, REASON_LENGTH_MAX, ActionForm, PairsField
from ftdash.ui.actions.run_forms import (
    AllowFaultsForm,
    CancelForm,
    ChangeForm,
    CheckpointForm,
    DisposeForm,
    KillSlotForm,
    LabelForm,
    RetryForm,
    StopForm,
    TakeSavepointForm,
)
from ftdash.ui.actions.start_forms import (
    ReplayForm,
    RestoreForm,
    StartForm,
    UndoStartForm,
    UpgradeForm,
    looked_at,
    proposal,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.domain.texts import holds_password

if TYPE_CHECKING:
    from pipelines.domain.run import Parameter


REFUSED = 422
"""The form was valid, but the service refused the request."""

ACTIONS: dict[str, type[ActionForm]] = {
    "retry": RetryForm,
    "checkpoint": CheckpointForm,
    "savepoint": TakeSavepointForm,
    "stop": StopForm,
    "upgrade": UpgradeForm,
    "restore": RestoreForm,
    "start": StartForm,
    "undo": UndoStartForm,
    "change": ChangeForm,
    "kill": KillSlotForm,
    "cancel": CancelForm,
    "faults": AllowFaultsForm,
    "replay": ReplayForm,
    "label": LabelForm,
    "dispose": DisposeForm,
}
"""The forms by the last part of their address, in the order of their buttons."""


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    page = queries.pipeline_page(name)
    if page is None or action not in ACTIONS:
        raise Http404("There is no such pipeline or action.")
    chosen = ACTIONS[action]
    if request.method == "GET" and chosen is RestoreForm:
        begin = proposal(page, request.GET.dict())
        form = RestoreForm(initial=begin.values, page=page, proposed=begin.sentence)
        return shown(request, page, action, form)
    if request.method == "GET":
        return shown(request, page, action, chosen(initial=request.GET.dict(), page=page))
    filled = chosen(request.POST, request.FILES, page=page)
    return submitted(request, page, action, filled)


def submitted(
    request: HttpRequest, page: PipelinePage, action: str, form: ActionForm
) -> HttpResponse:
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
    """Shows the form in the open dialog for htmx; without scripts, as a separate page."""
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


HELP = "One per line; every other setting keeps its default. All settings are listed below."
PREFIX = "parameter-"
SECRET_HELP = "(a secret: give the place that keeps it, env:NAME or file:PATH)"


def _field(parameter: "Parameter") -> forms.Field:
    given: dict[str, Any] = {
        "label": parameter.name,
        "help_text": parameter.help,
        "initial": parameter.default or "",
        "required": parameter.default is None,
    }
    if parameter.choices:
        return forms.ChoiceField(choices=[(each, each) for each in parameter.choices], **given)
    if parameter.is_secret:
        given["help_text"] = f"{parameter.help} {SECRET_HELP}".strip()
    return forms.CharField(widget=forms.TextInput(attrs=PLAIN_TEXT), **given)


class SubmitForm(forms.Form):
    """One field for each parameter of the flow; the flow decides which values are valid."""

    name = forms.CharField(label="Name", widget=forms.TextInput(attrs=PLAIN_TEXT))
    parallelism = forms.IntegerField(
        label="Parallelism", initial=2, help_text=f"1 to {DEFAULT_MAX_PARALLELISM}"
    )
    settings = PairsField(label="Settings", help_text=HELP)
    allows_faults = forms.BooleanField(
        label="Allow faults on purpose",
        required=False,
        help_text="Admins may kill and stop its processes in game days, to see that it recovers.",
    )
    reason = forms.CharField(label="Why", max_length=REASON_LENGTH_MAX)

    def __init__(self, *args: Any, flow: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.problem: Rejected | None = None  # why the service refused
        for parameter in parameters_of(flow):
            self.fields[PREFIX + parameter.name] = _field(parameter)
        self.fields["name"].initial = flow
        last = ("settings", "allows_faults", "reason")
        self.order_fields(["name", "parallelism", *self.parameter_fields, *last])

    def clean(self) -> dict[str, Any]:
        """The service refuses passwords; the form only avoids showing them again."""
        fields = (*self.parameter_fields, "settings")
        secret = [name for name in fields if holds_password(str(self.data.get(name, "")))]
        self.data = dict(self.data.items()) | dict.fromkeys(secret, "")
        return self.cleaned_data

    @property
    def parameter_fields(self) -> list[str]:
        return [name for name in self.fields if name.startswith(PREFIX)]

    def parameters(self) -> dict[str, str]:
        """Returns only filled-in fields: an empty one means the flow's default."""
        given = {name: self.cleaned_data[name] for name in self.parameter_fields}
        return {name.removeprefix(PREFIX): value for name, value in given.items() if value}


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def submit(request: HttpRequest) -> HttpResponse:
    from pipelines.flows.finding import declared_flows

    flows = list(declared_flows())
    flow = request.GET.get("flow", flows[0])
    if flow not in flows:
        return redirect("submit")
    context: dict[str, Any] = {"flow": flow, "flows": flows, "definitions": DEFINITIONS}
    try:
        form = SubmitForm(request.POST or None, flow=flow)
    except Rejected as problem:
        return render(request, "actions/submit.html", {**context, "problem": problem})
    context["form"] = form
    if request.method == "GET":
        return render(request, "actions/submit.html", context)
    if form.is_valid() and start(request, flow, form):
        return redirect("pipeline", form.cleaned_data["name"])
    return render(request, "actions/submit.html", context, status=REFUSED)


def start(request: HttpRequest, flow: str, form: SubmitForm) -> bool:
    """Returns True if the run was stored; otherwise the form shows the refusal."""
    values = form.cleaned_data
    try:
        request_id = services.submit_pipeline(
            name=values["name"],
            flow=flow,
            parallelism=values["parallelism"],
            parameters=form.parameters(),
            settings=values["settings"],
            allows_faults=values["allows_faults"],
            requester=request.user.get_username(),
            reason=values["reason"],
        )
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        form.problem = refusal
        return False
    started = queries.request(request_id)
    guarantee = f" {started.message}" if started else ""
    messages.success(request, f"{values['name']} is being started.{guarantee}")
    return True
