"""Stores the actions that people request on Flink jobs, and carries them out. Each ends once.

`carry_on` runs within the turn of the cluster, so an action has one process at a time. Before a
request leaves, the row says that it was sent. So a process that dies in between leaves a row that
the next one can judge (`triggers`).
"""

import secrets
from datetime import datetime
from typing import Any

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from ftdash.accounts.services import record
from ftdash.errands import Errand, publish_on_commit
from ftdash.flink_clusters.bodies import JobStatus, TriggerResult
from ftdash.flink_clusters.models import (
    FlinkAction,
    FlinkActionKind,
    FlinkActionState,
    FlinkCluster,
    FlinkJob,
)
from ftdash.flink_clusters.politeness import is_over
from ftdash.flink_clusters.rest import FlinkRest, Silent, Unknown
from ftdash.flink_clusters.services.keeping import plain
from ftdash.flink_clusters.triggers import (
    DIRECTORY_LENGTH_MAX,
    Next,
    Outcome,
    TriggerOptions,
    body_of,
    next_of_silent,
    next_of_unknown,
    next_of_unsent,
    outcome_of_cancel,
    outcome_of_trigger,
    paths_of,
)
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

_WORDS = {
    FlinkActionKind.SAVEPOINT: "asked Flink for a savepoint of",
    FlinkActionKind.STOP: "asked Flink to stop with a savepoint",
    FlinkActionKind.CANCEL: "asked Flink to cancel",
    FlinkActionKind.CHECKPOINT: "asked Flink for a checkpoint of",
}
NEVER_SENT = "The cluster did not answer for ten minutes; nothing was asked of it. Ask again."
SENT_AGAIN = (
    "The first request had no answer and Flink did not know its trigger id, so it was sent again"
    " under the same id, which Flink takes once."
)
CANCELLED_AGAIN = (
    "The first request had no answer, so it was sent again; to cancel twice does nothing more."
)
FORGOTTEN = (
    "It was sent, but Flink no longer knows it: the JobManager was restarted, or took too long."
    " Look for its savepoint in the directory, and at the state of the job, before you"
    " ask again."
)
SILENT = (
    "It was sent, and the cluster has been silent for 15 minutes since. Look for its savepoint in"
    " the directory, and at the job, before you ask again."
)


def ask(
    cluster: str,
    jid: str,
    kind: FlinkActionKind,
    options: TriggerOptions,
    *,
    requester: str,
    reason: str,
) -> int:
    """Returns the key of the stored action. Raises Rejected if it cannot be done."""
    reason = check_reason(reason)
    job = _job(cluster, jid)
    if len(options.directory) > DIRECTORY_LENGTH_MAX or "\0" in options.directory:
        raise Rejected(f"The directory may have {DIRECTORY_LENGTH_MAX:,} letters at most.")
    now = timezone.now()
    try:
        with transaction.atomic():
            row = FlinkAction.objects.create(
                job=job,
                kind=kind,
                asked=msgspec.to_builtins(options),
                trigger_id=secrets.token_hex(16),
                requester=requester,
                reason=reason,
                created_at=now,
            )
            record(
                who=requester,
                what=_WORDS[kind],
                subject=f"Flink job {cluster}/{jid}",
                reason=reason,
                detail=", ".join(filter(None, (job.name[:200], options.directory))),
            )
            FlinkCluster.objects.filter(pk=job.cluster_id).update(
                due_at=now, version=F("version") + 1
            )
            publish_on_commit(Errand.LOOK_AT_FLINK, job.cluster_id)
    except IntegrityError as error:
        raise Rejected(
            f"A {kind.label} of this job is under way already; wait until it ends."
        ) from error
    return int(row.pk)


def _job(cluster: str, jid: str) -> FlinkJob:
    """Raises Rejected if no action on the job is possible."""
    job = FlinkJob.objects.filter(cluster__name=cluster, jid=jid).first()
    if job is None:
        raise Rejected(f"The watched Flink cluster {cluster!r} has no job {jid!r}.")
    if job.forgotten_at is not None:
        raise Rejected(f"The cluster {cluster} no longer has this job; only its history is left.")
    if is_over(job.state):
        raise Rejected(f"The job has ended ({job.state}); there is nothing to ask of it.")
    return job


def carry_on(cluster: FlinkCluster, flink: FlinkRest) -> None:
    """Takes one step of each open action. After Silent, the next look continues from the rows."""
    for row in _open(cluster):
        try:
            _step(row, flink, timezone.now())
        except Rejected as refusal:
            _end(row, FlinkActionState.FAILED, problem=str(refusal))


def end_overdue(cluster: FlinkCluster) -> None:
    """Ends actions that have waited for too long while the cluster is silent."""
    now = timezone.now()
    for row in _open(cluster):
        if row.state == FlinkActionState.WAITING:
            if next_of_unsent(created_at=row.created_at, now=now) is Next.GIVE_UP:
                _end(row, FlinkActionState.FAILED, problem=NEVER_SENT)
            continue
        heard_at = row.answered_at or row.sent_at or row.created_at
        if next_of_silent(answered_at=heard_at, now=now) is Next.FORGET:
            _end(row, FlinkActionState.UNKNOWN, problem=SILENT)


def _open(cluster: FlinkCluster) -> list[FlinkAction]:
    rows = FlinkAction.objects.filter(job__cluster=cluster, ended_at=None)
    return list(rows.select_related("job").order_by("pk"))


def _step(row: FlinkAction, flink: FlinkRest, now: datetime) -> None:
    if row.state == FlinkActionState.WAITING:
        if next_of_unsent(created_at=row.created_at, now=now) is Next.GIVE_UP:
            _end(row, FlinkActionState.FAILED, problem=NEVER_SENT)
        else:
            _send(row, flink, now)
    else:
        _ask_for(row, flink, now)


def _send(row: FlinkAction, flink: FlinkRest, now: datetime, note: str = "") -> None:
    """Marks the row as sent first: the next process must then ask Flink before it sends again."""
    before = {"state": row.state, "sent_at": row.sent_at}
    _set(
        row,
        state=FlinkActionState.SENT,
        sent_at=row.sent_at or now,
        sent_count=row.sent_count + 1,
        note=note or row.note,
    )
    try:
        _post(row, flink)
    except Silent as silence:
        if not silence.was_sent:
            _set(row, sent_count=row.sent_count - 1, **before)
        raise
    _set(row, state=FlinkActionState.ACCEPTED, answered_at=timezone.now())


def _post(row: FlinkAction, flink: FlinkRest) -> None:
    if row.kind == FlinkActionKind.CANCEL:
        flink.cancel(row.job.jid)
        return
    options = msgspec.convert(row.asked, TriggerOptions)
    path, _ = paths_of(row.kind, row.job.jid, row.trigger_id)
    flink.post(path, body_of(row.kind, options, row.trigger_id))


def _ask_for(row: FlinkAction, flink: FlinkRest, now: datetime) -> None:
    was_accepted = row.state == FlinkActionState.ACCEPTED
    try:
        outcome = _outcome(row, flink)
    except Unknown:
        sent_at = row.sent_at or row.created_at
        following = next_of_unknown(sent_at=sent_at, was_accepted=was_accepted, now=now)
        if following is Next.SEND_AGAIN and row.kind != FlinkActionKind.CANCEL:
            _send(row, flink, now, note=SENT_AGAIN)
        else:
            _end(row, FlinkActionState.UNKNOWN, problem=FORGOTTEN)
        return
    if outcome is not None:
        _end_as(row, outcome)
    elif row.kind == FlinkActionKind.CANCEL and not was_accepted:
        _send(row, flink, now, note=CANCELLED_AGAIN)
    else:
        _set(row, state=FlinkActionState.ACCEPTED, answered_at=now)


def _outcome(row: FlinkAction, flink: FlinkRest) -> Outcome | None:
    if row.kind == FlinkActionKind.CANCEL:
        status = flink.get(f"/jobs/{row.job.jid}/status", JobStatus).status
        return outcome_of_cancel(status)
    _, path = paths_of(row.kind, row.job.jid, row.trigger_id)
    return outcome_of_trigger(flink.get(path, TriggerResult))


def _end_as(row: FlinkAction, outcome: Outcome) -> None:
    state = FlinkActionState.FAILED if outcome.problem else FlinkActionState.SUCCEEDED
    _end(
        row,
        state,
        problem=outcome.problem,
        location=plain(outcome.location),
        checkpoint_id=outcome.checkpoint_id,
    )


def _end(row: FlinkAction, state: FlinkActionState, *, problem: str = "", **columns: Any) -> None:
    """Ends the action, unless it has ended already."""
    _still_open(row).update(
        state=state, ended_at=timezone.now(), problem=plain(problem)[:2_000], **columns
    )


def _set(row: FlinkAction, **columns: Any) -> None:
    _still_open(row).update(**columns)
    row.refresh_from_db()


def _still_open(row: FlinkAction) -> QuerySet[FlinkAction]:
    return FlinkAction.objects.filter(pk=row.pk, ended_at=None)
