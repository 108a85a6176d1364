"""Disposes of savepoints, and changes their labels.

A worker disposes of a savepoint: it refuses while a run needs one, deletes its files and ends the
request. It deletes the manifest first. Another worker that continues the disposal finds no
manifest, so it does not check again, and deletes the rest.

The driver does not know labels: they are stored next to the points, and a new label touches no
file. `requests.services` stores the label of a savepoint that is still to be taken.
"""

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.savepoints import read_manifest
from ftdash.jobs.models import (
    TERMINAL_STATUSES,
    PointLabel,
    Request,
    RequestPhase,
    Run,
    Upgrade,
)
from ftdash.jobs.validation import check_place, roots
from ftdash.requests.storing import (
    Question,
    already_asked,
    end_request,
    move_request,
    pipeline_named,
    refusals_logged,
    store,
)
from pipelines.domain.commands import DisposeSavepoint, LabelSavepoint
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.domain.texts import checked_label

UNENDED = (RequestPhase.PENDING, RequestPhase.ACCEPTED)


def check_disposable(path: str) -> None:
    """Raises Rejected if there is no savepoint at `path`, or if a run still needs it."""
    if read_manifest(path).kind is not CheckpointKind.SAVEPOINT:
        raise Rejected(f"{path} is no savepoint; its run deletes it when newer ones replace it.")
    if upgrade := Upgrade.objects.filter(savepoint=path, ended_at=None).first():
        raise Rejected(
            f"{path} is what the upgrade of {upgrade.pipeline.name!r} goes back to if it fails;"
            " dispose of it when the upgrade has ended."
        )
    if run := needed_by(path):
        raise Rejected(
            f"{path} is what run {run.run_id} of {run.pipeline.name!r} would restore after a"
            " failure; dispose of it when that run has completed another checkpoint or has ended."
        )


def written_by(path: str) -> str:
    """Returns the pipeline whose run wrote the point. Raises Rejected if it is not one of ours."""
    check_place(path)
    row = Checkpoint.objects.filter(path=path).select_related("run__pipeline").first()
    if row is not None:
        return row.run.pipeline.name
    run = Run.objects.filter(run_id=read_manifest(path).run_id).select_related("pipeline").first()
    if run is None:
        raise Rejected(f"{path} was written by no pipeline of this installation.")
    return run.pipeline.name


def check_claimable(path: str, claim_mode: ClaimMode) -> None:
    """Raises Rejected if a living run owns the point, or would lose it to a new owner."""
    living = Run.objects.exclude(status__in=TERMINAL_STATUSES).select_related("pipeline")
    owner = living.filter(restored_from=path, claim_mode=ClaimMode.CLAIM.value).first()
    if owner is not None:
        raise Rejected(
            f"{path} is claimed by run {owner.run_id} of {owner.pipeline.name!r}, which deletes it"
            " when newer points replace it; choose another point."
        )
    run = needed_by(path) if claim_mode is ClaimMode.CLAIM else None
    if run is not None:
        raise Rejected(
            f"{path} cannot be claimed: it is what run {run.run_id} of {run.pipeline.name!r} would"
            " go back to; restore from it without claiming it."
        )


def dispose_of(request_key: int) -> None:
    """Carries out one stored request, or continues with it if its worker may have died."""
    request = Request.objects.filter(pk=request_key, phase__in=UNENDED).first()
    if request is None or not isinstance(request.command, DisposeSavepoint):
        return
    path = request.command.path
    try:
        if request.phase == RequestPhase.PENDING:
            check_disposable(path)
            move_request(request, RequestPhase.ACCEPTED, accepted_at=timezone.now())
            request.refresh_from_db()
        if request.phase != RequestPhase.ACCEPTED:
            return
        _delete(path)
    except Rejected as refusal:
        end_request(request, RequestPhase.REJECTED, str(refusal), timezone.now())
    except Retryable as error:
        end_request(request, RequestPhase.FAILED, str(error), timezone.now())
    else:
        Checkpoint.objects.filter(path=path).update(status=CheckpointStatus.DISCARDED)
        text = f"The files of {path} are deleted."
        end_request(request, RequestPhase.SUCCEEDED, text, timezone.now())


def _delete(path: str) -> None:
    # Loads Arrow, which most of a worker's tasks do not need.
    from pipelines.storage.stores import CheckpointStores

    CheckpointStores(roots(), max_memory_state_bytes=0).discard(path)


def needed_by(path: str) -> Run | None:
    """Returns a living run that starts from it, has claimed it, or would go back to it now."""
    living = Run.objects.exclude(status__in=TERMINAL_STATUSES).select_related("pipeline")
    starts = Q(restored_from=path) & (
        Q(last_checkpoint_id=None) | Q(claim_mode=ClaimMode.CLAIM.value)
    )
    if run := living.filter(starts).first():
        return run
    row = Checkpoint.objects.filter(path=path).first()
    if row is None:
        return None
    return living.filter(pk=row.run_id, last_checkpoint_id=row.checkpoint_id).first()


def label_savepoint(
    *,
    pipeline: str,
    path: str,
    label: str,
    requester: str,
    reason: str,
    request_id: str | None = None,
) -> RequestId:
    """Give a savepoint of the pipeline another label; an empty one removes it.

    Raises Rejected if the pipeline has no savepoint at `path`, or the label is invalid.
    """
    question = Question(pipeline, requester, reason, request_id)
    with refusals_logged(question, LabelSavepoint):
        if known := already_asked(question, LabelSavepoint):
            return known
        label = checked_label(label)
        row = pipeline_named(pipeline)
        rows = Checkpoint.objects.filter(kind=CheckpointKind.SAVEPOINT.value, path=path)
        if not rows.filter(run__pipeline=row).exists():
            raise Rejected(
                f"{pipeline} has no savepoint at {path}; look at its page of savepoints."
            )
        question, now = question.with_reason(), timezone.now()
        with transaction.atomic():
            PointLabel.objects.update_or_create(
                path=path, defaults={"label": label, "labelled_by": requester, "labelled_at": now}
            )
            request = store(question, LabelSavepoint(path=path, label=label), row, None, 0.0)
            text = f"It is called {label!r} now." if label else "It no longer has a label."
            end_request(request, RequestPhase.SUCCEEDED, text, now)
        return RequestId(request.request_id)
