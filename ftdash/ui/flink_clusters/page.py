"""The pages of watched Flink clusters: a cluster, a job, a checkpoint, all points, and actions.

They only read rows. A worker asks the clusters, so the pages say when each cluster last answered,
and stay the same after its death. The pages of a cluster and of a job are live.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.alerts.queries import SilenceView, silence_of_cluster
from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.flink_clusters import queries
from ftdash.flink_clusters.models import FlinkActionKind
from ftdash.flink_clusters.queries import CheckpointDetail, ClusterBrief, JobDetail, ShownJob
from ftdash.flink_clusters.queries.catalogue import (
    Catalogue,
    Files,
    PointFilter,
    PointKind,
    catalogue,
    jobs_with_points,
)
from ftdash.flink_clusters.services import actions, registration
from ftdash.flink_clusters.services.registration import Place, parsed_header
from ftdash.flink_clusters.triggers import TriggerOptions
from ftdash.incidents.causes import Cause
from ftdash.runs.queries.freshness import Observation, observe
from ftdash.ui import sentences
from ftdash.ui.actions.forms import PLAIN_TEXT
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.checkpoints.trends import trends
from ftdash.ui.events import shared
from ftdash.ui.figures.alignment import alignment, subtasks_to_draw
from ftdash.ui.figures.style import Chart
from ftdash.ui.pipelines.page import number_or_none
from ftdash.ui.watching.page import watch_no_longer
from ftdash.ui.watching.work_forms import ReasonedForm
from ftdash.watching.queries.incidents import WatchedIncidentView, of_flink
from pipelines.domain.errors import Rejected, Retryable

CHECKPOINTS_PER_PAGE = 25
CHECKPOINT_ID_MAX = 2**63 - 1
CHARTS = 3
"""Duration, alignment and sizes; Flink does not measure how much is held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    cluster: ClusterBrief
    jobs: list[ShownJob]
    incidents: list[WatchedIncidentView]  # open ones; its `problem` tells if it is silent
    silence: SilenceView | None  # holds back the messages about it and its jobs
    seen: Observation

    @property
    def resource(self) -> str:
        return queries.resource(self.cluster.name)

    @property
    def data_at(self) -> datetime | None:
        return self.cluster.heard_at


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    detail: JobDetail
    charts: list[tuple[str, Chart]]
    incidents: list[WatchedIncidentView]  # open ones
    seen: Observation

    @property
    def resource(self) -> str:
        return queries.resource(self.detail.cluster.name)

    @property
    def data_at(self) -> datetime | None:
        return self.detail.cluster.heard_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    detail: CheckpointDetail
    chart: Chart
    drawn: list[SubtaskTimeline]
    seen: Observation

    @property
    def resource(self) -> str:
        return queries.resource(self.detail.cluster.name)

    @property
    def data_at(self) -> datetime | None:
        return self.detail.cluster.heard_at


@require_GET
@never_cache
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "flink_clusters/cluster.html", {"view": cluster_view(name)})


@require_GET
@never_cache
@shared
def cluster_regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": cluster_view(name), "is_refresh": True}
    return render(request, "flink_clusters/cluster_regions.html", context)


def cluster_view(name: str) -> ClusterView:
    """Raises Http404 if no cluster of that name is watched."""
    found = existing(name)
    incidents = [each for each in of_flink(name) if each.cause is not Cause.FLINK_SILENT]
    return ClusterView(
        cluster=found,
        jobs=queries.jobs(name),
        incidents=incidents,
        silence=silence_of_cluster(name),
        seen=observe(),
    )


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def job(request: HttpRequest, name: str, jid: str) -> HttpResponse:
    return render(request, "flink_clusters/job.html", {"view": job_view(request, name, jid)})


@require_GET
@never_cache
@shared
def job_regions(request: HttpRequest, name: str, jid: str) -> HttpResponse:
    context = {"view": job_view(request, name, jid), "is_refresh": True}
    return render(request, "flink_clusters/job_regions.html", context)


def job_view(request: HttpRequest, name: str, jid: str) -> JobView:
    """Raises Http404 if the cluster or its job is not known."""
    page = number_or_none(request.GET.get("page")) or 1
    detail = queries.job_detail(name, jid, page=page, per_page=CHECKPOINTS_PER_PAGE)
    if detail is None:
        raise Http404(f"The watched Flink cluster {name} has no job {jid}.")
    return JobView(
        detail=detail,
        charts=trends(detail.trend).charts[:CHARTS],
        incidents=of_flink(name, jid),
        seen=observe(),
    )


@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def checkpoint(request: HttpRequest, name: str, jid: str, checkpoint_id: int) -> HttpResponse:
    context = {"view": checkpoint_view(name, jid, checkpoint_id)}
    return render(request, "flink_clusters/checkpoint.html", context)


@require_GET
@never_cache
@shared
def checkpoint_regions(
    request: HttpRequest, name: str, jid: str, checkpoint_id: int
) -> HttpResponse:
    context = {"view": checkpoint_view(name, jid, checkpoint_id), "is_refresh": True}
    return render(request, "flink_clusters/checkpoint_regions.html", context)


def checkpoint_view(name: str, jid: str, checkpoint_id: int) -> CheckpointView:
    """Raises Http404 if the checkpoint is not known."""
    known = checkpoint_id <= CHECKPOINT_ID_MAX
    detail = queries.checkpoint(name, jid, checkpoint_id) if known else None
    if detail is None:
        raise Http404(f"Checkpoint {checkpoint_id} of this job is not known.")
    timeline = detail.timeline
    return CheckpointView(
        detail=detail,
        chart=Chart("alignment", sentences.alignment(timeline), alignment(timeline)),
        drawn=subtasks_to_draw(timeline.subtasks),
        seen=observe(),
    )


class WatchForm(ReasonedForm):
    name = forms.CharField(
        label="Name",
        help_text="The name of the cluster in this dashboard.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    address = forms.CharField(
        label="Address",
        help_text="That of Flink's web page and REST interface, such as http://jobmanager:8081.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    header = forms.CharField(
        label="Header with a token",
        required=False,
        help_text="Only if a proxy in front of Flink asks for it, such as Authorization: Bearer"
        " TOKEN. It is sent only to this address, and no page shows it again.",
        widget=forms.PasswordInput(attrs={**PLAIN_TEXT, "autocomplete": "new-password"}),
    )
    field_order = ("name", "address", "header", "reason")

    def place(self) -> Place:
        """Raises Rejected if the header is malformed."""
        header_name, header_value = parsed_header(self.cleaned_data["header"])
        return Place(
            address=self.cleaned_data["address"],
            header_name=header_name,
            header_value=header_value,
        )


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def watch(request: HttpRequest) -> HttpResponse:
    form = WatchForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        who = request.user.get_username()
        try:
            registration.watch(
                name=given["name"], place=form.place(), requester=who, reason=given["reason"]
            )
        except (Rejected, Retryable) as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, "The cluster is watched. Its jobs appear within seconds.")
            return redirect("flink-cluster", given["name"])
    status = REFUSED if request.method == "POST" else 200
    return render(request, "flink_clusters/watch.html", {"form": form}, status=status)


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def remove(request: HttpRequest, name: str) -> HttpResponse:
    existing(name)
    context = {
        "name": name,
        "page": reverse("flink-cluster", args=[name]),
        "words": "The history that this dashboard keeps of the cluster is deleted: its jobs, their"
        " checkpoints and failures, and the catalogue of points. Flink itself has at most the"
        " newest ten. The cluster, its jobs and their files are not touched.",
        "done": f"ftdash no longer watches {name}; the cluster itself keeps running.",
    }
    return watch_no_longer(request, "flink_clusters/remove.html", context, registration.remove)


class SavepointForm(ReasonedForm):
    directory = forms.CharField(
        label="Directory",
        required=False,
        help_text="A place that the cluster can write, such as s3://bucket/savepoints. Empty: the"
        " one that the cluster has configured.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    savepoint_format = forms.ChoiceField(
        label="Format",
        choices=(
            ("CANONICAL", "Canonical: any state backend can read it"),
            ("NATIVE", "Native to the state backend: often faster"),
        ),
    )
    field_order = ("directory", "savepoint_format", "drain", "reason")

    def options(self) -> TriggerOptions:
        given = self.cleaned_data
        return TriggerOptions(
            directory=given["directory"].strip(),
            savepoint_format=given["savepoint_format"],
            drain=given.get("drain", False),
        )


class StopForm(SavepointForm):
    drain = forms.BooleanField(
        label="Drain it",
        required=False,
        help_text="The sources end as if their input did, and windows fire. Choose it only if the"
        " job will not continue from this savepoint.",
    )


class CheckpointForm(ReasonedForm):
    checkpoint_type = forms.ChoiceField(
        label="Type",
        choices=(
            ("CONFIGURED", "As the job is configured"),
            ("FULL", "Full, also if the job takes incremental ones"),
        ),
    )
    field_order = ("checkpoint_type", "reason")

    def options(self) -> TriggerOptions:
        return TriggerOptions(checkpoint_type=self.cleaned_data["checkpoint_type"])


class CancelForm(ReasonedForm):
    def options(self) -> TriggerOptions:
        return TriggerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action that a page may ask of a job: its words, and its form."""

    kind: FlinkActionKind
    title: str
    button: str
    words: str
    form: type[SavepointForm] | type[CheckpointForm] | type[CancelForm]
    is_destructive: bool = False


OFFERS: Mapping[str, Offer] = {
    "savepoint": Offer(
        kind=FlinkActionKind.SAVEPOINT,
        title="Take a savepoint",
        button="Take it",
        words="Flink writes the whole state of the job into a directory. The job keeps running.",
        form=SavepointForm,
    ),
    "stop": Offer(
        kind=FlinkActionKind.STOP,
        title="Stop with a savepoint",
        button="Stop it",
        words="Flink takes a savepoint, and the job ends with it. Start the job from that savepoint"
        " to continue. If the savepoint fails, the job keeps running.",
        form=StopForm,
        is_destructive=True,
    ),
    "checkpoint": Offer(
        kind=FlinkActionKind.CHECKPOINT,
        title="Take a checkpoint",
        button="Take it",
        words="Flink takes a checkpoint now. It replaces older ones as those of the job's own"
        " interval do.",
        form=CheckpointForm,
    ),
    "cancel": Offer(
        kind=FlinkActionKind.CANCEL,
        title="Cancel the job",
        button="Cancel the job",
        words="The job ends at once, without a savepoint. Its checkpoints stay only if it retains"
        " them on cancellation; what it has read since the last one must be read again.",
        form=CancelForm,
        is_destructive=True,
    ),
}


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def ask(request: HttpRequest, name: str, jid: str, action: str) -> HttpResponse:
    """Shows the form of an action; after a refusal, with everything that the person typed."""
    found, offer = queries.job(name, jid), OFFERS.get(action)
    if found is None or offer is None:
        raise Http404("There is no such job, or nothing of that name to ask of it.")
    form: Any = offer.form(request.POST or None)
    if request.method == "POST" and form.is_valid():
        who, why = request.user.get_username(), form.cleaned_data["reason"]
        try:
            actions.ask(name, jid, offer.kind, form.options(), requester=who, reason=why)
        except Rejected as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, "Requested. The job's page shows the outcome.")
            return redirect("flink-job", name, jid)
    status = REFUSED if request.method == "POST" else 200
    context = {"form": form, "name": name, "job": found, "offer": offer}
    return render(request, "flink_clusters/ask.html", context, status=status)


def existing(name: str) -> ClusterBrief:
    """Raises Http404 if no cluster of that name is watched."""
    found = queries.cluster(name)
    if found is None:
        raise Http404(f"There is no watched Flink cluster named {name}.")
    return found


PER_PAGE = 50
NAME_SHOWN = 60
PATH_LENGTH_MAX = 1_000


class PointsForm(forms.Form):
    """The form shows an invalid field with its error, and does not filter by it."""

    job = forms.ChoiceField(required=False)
    kind = forms.ChoiceField(
        required=False,
        choices=[
            ("", "savepoints and checkpoints"),
            (PointKind.SAVEPOINT.value, "savepoints"),
            (PointKind.CHECKPOINT.value, "checkpoints"),
        ],
    )
    kept = forms.ChoiceField(
        label="Files",
        required=False,
        choices=[
            ("", "there, as far as Flink has said"),
            (Files.DELETED.value, "deleted, says Flink"),
            (Files.ANY.value, "there or deleted"),
        ],
    )
    path = forms.CharField(
        label="Path has",
        required=False,
        max_length=PATH_LENGTH_MAX,
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )

    def __init__(self, query: QueryDict, jobs: list[tuple[str, str]]) -> None:
        super().__init__(query)
        shown = [(jid, f"{name[:NAME_SHOWN]} ({jid[:8]})") for jid, name in jobs]
        self.fields["job"] = forms.ChoiceField(required=False, choices=[("", "all"), *shown])
        self.is_valid()

    @property
    def point_filter(self) -> PointFilter:
        given: dict[str, Any] = self.cleaned_data
        return PointFilter(
            jid=given.get("job", ""),
            kind=PointKind(given["kind"]) if given.get("kind") else None,
            files=Files(given["kept"]) if given.get("kept") else Files.THERE,
            path=given.get("path", ""),
        )


@require_GET
@never_cache
def points(request: HttpRequest, name: str) -> HttpResponse:
    """Raises Http404 if no cluster of that name is watched."""
    cluster = existing(name)
    form = PointsForm(request.GET, jobs_with_points(name))
    page = number_or_none(request.GET.get("page")) or 1
    found = catalogue(name, form.point_filter, page=page, per_page=PER_PAGE)
    context = {"cluster": cluster, "form": form, "found": found} | _neighbours(request, found)
    return render(request, "flink_clusters/catalogue.html", context)


def _neighbours(request: HttpRequest, found: Catalogue) -> dict[str, str]:
    """Returns the addresses of the pages next to this one, with the filter; empty if none."""
    return {
        "newer": _address(request, found.page - 1) if found.page > 1 else "",
        "older": _address(request, found.page + 1) if found.page < found.pages else "",
    }


def _address(request: HttpRequest, page: int) -> str:
    query = request.GET.copy()
    query["page"] = str(page)
    return f"?{query.urlencode()}"
