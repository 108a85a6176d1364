"""Addresses of watched Flink clusters, their jobs, and actions on these jobs.

An action answers at once; ask its address until its state is SUCCEEDED, FAILED or UNKNOWN.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Field, Schema

from ftdash.api.own.door import Entered, api, known
from ftdash.api.own.shapes import Changing, InPath, Name, NumberInPath, Page, Text
from ftdash.flink_clusters import queries
from ftdash.flink_clusters.models import FlinkActionKind, FlinkActionState
from ftdash.flink_clusters.queries import CheckpointBrief, ClusterState, JobBrief
from ftdash.flink_clusters.queries.catalogue import (
    CataloguedPoint,
    Files,
    PointFilter,
    PointKind,
    catalogue,
)
from ftdash.flink_clusters.services import actions, registration
from ftdash.flink_clusters.services.registration import HEADER_LENGTH_MAX, Place, parsed_header
from ftdash.flink_clusters.triggers import TriggerOptions
from ftdash.watching.queries.incidents import WatchedIncidentView, of_flink

CHECKPOINTS_PER_PAGE = 200


class FlinkClusterAnswer(Schema):
    """`heard_at` is the time of its newest answer; `problem` says why it does not answer now.

    Times are UTC.
    """

    name: str
    address: str
    has_header: bool
    flink_version: str
    state: ClusterState
    heard_at: datetime | None
    problem: str
    running_count: int
    job_count: int


class FlinkActionAnswer(Schema):
    """`note` describes its course, for example that it was sent again."""

    key: int
    kind: FlinkActionKind
    state: FlinkActionState
    requester: str
    created_at: datetime
    ended_at: datetime | None
    sent_count: int
    location: str
    checkpoint_id: int | None
    note: str
    problem: str


class FlinkClusterBody(Changing):
    """`header` is a name, a colon and a value. It is kept, and no answer contains it."""

    name: Name
    address: Text
    header: str = Field(default="", max_length=HEADER_LENGTH_MAX)


class FlinkActionBody(Changing):
    """An empty `directory` means the one that the cluster has configured."""

    kind: Literal["SAVEPOINT", "STOP", "CANCEL", "CHECKPOINT"]
    directory: Text = ""
    savepoint_format: Literal["CANONICAL", "NATIVE"] = "CANONICAL"
    drain: bool = False
    checkpoint_type: Literal["CONFIGURED", "FULL"] = "CONFIGURED"

    def options(self) -> TriggerOptions:
        return TriggerOptions(
            directory=self.directory,
            savepoint_format=self.savepoint_format,
            drain=self.drain,
            checkpoint_type=self.checkpoint_type,
        )


@api.get("/flink-clusters", response=list[FlinkClusterAnswer])
def flink_clusters(request: HttpRequest) -> list[FlinkClusterAnswer]:
    """All watched Flink clusters, those that need attention first."""
    return [FlinkClusterAnswer.from_orm(each) for each in queries.clusters()]


@api.post("/flink-clusters", response=FlinkClusterAnswer)
def watch_flink_cluster(request: Entered, body: FlinkClusterBody) -> FlinkClusterAnswer:
    """Watch a Flink cluster, or change the address or header of one that is watched."""
    header_name, header_value = parsed_header(body.header)
    registration.watch(
        name=body.name,
        place=Place(address=body.address, header_name=header_name, header_value=header_value),
        requester=request.auth.name,
        reason=body.reason,
    )
    return _cluster(body.name)


@api.get("/flink-clusters/{name}", response=FlinkClusterAnswer)
def flink_cluster(request: HttpRequest, name: InPath) -> FlinkClusterAnswer:
    """One watched Flink cluster."""
    return _cluster(name)


@api.post("/flink-clusters/{name}/remove", response=list[FlinkClusterAnswer])
def remove_flink_cluster(
    request: Entered, name: InPath, body: Changing
) -> list[FlinkClusterAnswer]:
    """Stop watching a cluster, and delete its history; the answer lists the remaining clusters."""
    _cluster(name)
    registration.remove(name=name, requester=request.auth.name, reason=body.reason)
    return [FlinkClusterAnswer.from_orm(each) for each in queries.clusters()]


@api.get("/flink-clusters/{name}/incidents", response=list[WatchedIncidentView])
def flink_incidents(request: HttpRequest, name: InPath) -> list[WatchedIncidentView]:
    """Incidents of a cluster and of its jobs, the open ones first."""
    _cluster(name)
    return of_flink(name, with_closed=True)


@api.get("/flink-clusters/{name}/points", response=list[CataloguedPoint])
def flink_catalogue(
    request: HttpRequest,
    name: InPath,
    job: Name | None = None,
    kind: PointKind | None = None,
    files: Files = Files.THERE,
    page: Page = 1,
) -> list[CataloguedPoint]:
    """Savepoints and retained checkpoints of all jobs, newest first, 200 on a page."""
    _cluster(name)
    chosen = PointFilter(jid=job or "", kind=kind, files=files)
    return catalogue(name, chosen, page=page, per_page=CHECKPOINTS_PER_PAGE).rows


@api.get("/flink-clusters/{name}/jobs", response=list[JobBrief])
def flink_jobs(request: HttpRequest, name: InPath) -> Sequence[JobBrief]:
    """The jobs of a cluster, also those that it has forgotten; those that still run come first."""
    _cluster(name)
    return queries.jobs(name)


@api.get("/flink-clusters/{name}/jobs/{jid}/checkpoints", response=list[CheckpointBrief])
def flink_checkpoints(
    request: HttpRequest, name: InPath, jid: InPath, page: Page = 1
) -> list[CheckpointBrief]:
    """Checkpoints of a job, newest first, 200 on a page."""
    _job(name, jid)
    found = queries.checkpoints(name, jid, page=page, per_page=CHECKPOINTS_PER_PAGE)
    return found.rows


@api.get("/flink-clusters/{name}/jobs/{jid}/points", response=list[CheckpointBrief])
def flink_points(request: HttpRequest, name: InPath, jid: InPath) -> list[CheckpointBrief]:
    """Savepoints of a job, and checkpoints whose files existed when Flink last reported them."""
    _job(name, jid)
    return queries.points(name, jid)


@api.get("/flink-clusters/{name}/jobs/{jid}/actions", response=list[FlinkActionAnswer])
def flink_actions(request: HttpRequest, name: InPath, jid: InPath) -> list[FlinkActionAnswer]:
    """The actions on a job that were requested from ftdash, newest first."""
    _job(name, jid)
    return [FlinkActionAnswer.from_orm(each) for each in queries.actions(name, jid)]


@api.post("/flink-clusters/{name}/jobs/{jid}/actions", response=FlinkActionAnswer)
def ask_flink(
    request: Entered, name: InPath, jid: InPath, body: FlinkActionBody
) -> FlinkActionAnswer:
    """Ask Flink for a savepoint, a stop with savepoint, a cancellation or a checkpoint."""
    _job(name, jid)
    key = actions.ask(
        name,
        jid,
        FlinkActionKind(body.kind),
        body.options(),
        requester=request.auth.name,
        reason=body.reason,
    )
    return _action(name, key)


@api.get("/flink-clusters/{name}/actions/{key}", response=FlinkActionAnswer)
def flink_action(request: HttpRequest, name: InPath, key: NumberInPath) -> FlinkActionAnswer:
    """How far an action has come."""
    return _action(name, key)


def _cluster(name: str) -> FlinkClusterAnswer:
    return FlinkClusterAnswer.from_orm(
        known(queries.cluster(name), f"watched Flink cluster {name}")
    )


def _job(name: str, jid: str) -> None:
    known(queries.job(name, jid), f"job {jid} of the Flink cluster {name}")


def _action(name: str, key: int) -> FlinkActionAnswer:
    return FlinkActionAnswer.from_orm(known(queries.action(name, key), f"action {key} of {name}"))
