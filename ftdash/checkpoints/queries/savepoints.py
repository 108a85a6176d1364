"""Facts about savepoints: their labels, who asked for them, which runs were restored from them.

Reads rows; asks the disk only if the manifest is there.
"""

from collections.abc import Iterable
from datetime import datetime

from django.core.paginator import Paginator
from django.db.models import QuerySet, Sum

from ftdash.checkpoints.answers import (
    OtherPoints,
    Reading,
    RestoredRun,
    Savepoint,
    SavepointPage,
)
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.points import may_be_read
from ftdash.jobs.models import PointInspection, PointLabel, Request, RequestKind, Run
from ftdash.times import watermark_moment
from pipelines.domain.status import CheckpointKind, ClaimMode, SavepointFormat

COMPLETE = (CheckpointStatus.COMPLETED, CheckpointStatus.DISCARDED)


def savepoints(pipeline: str, page: int = 1, per_page: int = 25) -> SavepointPage:
    """Of all runs of the pipeline; a page beyond the last is the last."""
    rows = _savepoints().filter(run__pipeline__name=pipeline).order_by("-completed_at", "-pk")
    shown = Paginator(rows, per_page).get_page(page)
    kept = rows.filter(status=CheckpointStatus.COMPLETED).aggregate(total=Sum("state_bytes"))
    return SavepointPage(
        rows=_described(list(shown)),
        page=shown.number,
        page_count=shown.paginator.num_pages,
        total_count=shown.paginator.count,
        kept_bytes=kept["total"] or 0,
    )


def savepoint(key: str) -> Savepoint | None:
    """`key` is that of `Savepoint`; None: there is no such savepoint."""
    run_id, _, number = key.rpartition("-")
    if not number.isdecimal() or len(number) > 18:
        return None
    found = _described(_savepoints().filter(run__run_id=run_id, checkpoint_id=int(number))[:1])
    return found[0] if found else None


def savepoint_at(pipeline: str, path: str) -> Savepoint | None:
    """None: the pipeline has no savepoint there."""
    found = _described(_savepoints().filter(run__pipeline__name=pipeline, path=path)[:1])
    return found[0] if found else None


def others_than(point: Savepoint) -> OtherPoints:
    kept = Checkpoint.objects.filter(
        run__pipeline__name=point.pipeline, status=CheckpointStatus.COMPLETED, path__isnull=False
    ).exclude(path=point.path)
    earlier = kept.filter(completed_at__lt=point.completed_at).select_related("run")
    older = earlier.order_by("-completed_at").first()
    # Records are counted along a lineage, so across runs the difference may mean nothing.
    is_comparable = older is not None and older.run.run_id == point.run_id
    read = (older.source_records or 0) if older else 0
    return OtherPoints(
        count=kept.count(),
        newest_older_id=older.checkpoint_id if older else None,
        newest_older_kind=older.kind.lower() if older else "",
        records_between=point.source_records - read if is_comparable else None,
    )


def _savepoints() -> QuerySet[Checkpoint]:
    kinds = Checkpoint.objects.filter(kind=CheckpointKind.SAVEPOINT.value, status__in=COMPLETE)
    complete = kinds.filter(path__isnull=False, checkpoint_id__isnull=False)
    return complete.select_related("run__pipeline")


def _described(rows: Iterable[Checkpoint]) -> list[Savepoint]:
    rows = list(rows)
    paths = [row.path or "" for row in rows]
    wanted = [row.request_id for row in rows if row.request_id]
    asked = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    labels = labels_of(paths, wanted)
    readings = {each.path: each for each in PointInspection.objects.filter(path__in=paths)}
    restored: dict[str, list[RestoredRun]] = {}
    for run in (
        Run.objects.filter(restored_from__in=paths).select_related("pipeline").order_by("pk")
    ):
        restored.setdefault(run.restored_from or "", []).append(_restored(run))
    return [
        _savepoint(
            row,
            asked.get(row.request_id or ""),
            labels.get(row.path or "", labels.get(row.request_id or "")),
            readings.get(row.path or ""),
            restored.get(row.path or "", []),
        )
        for row in rows
    ]


def labels_of(paths: list[str], request_ids: list[str]) -> dict[str, PointLabel]:
    """By path and by request."""
    by_path = {row.path or "": row for row in PointLabel.objects.filter(path__in=paths)}
    by_request = PointLabel.objects.filter(request_id__in=request_ids)
    return {row.request_id or "": row for row in by_request} | by_path


def _restored(run: Run) -> RestoredRun:
    return RestoredRun(
        run_id=run.run_id,
        pipeline=run.pipeline.name,
        number=run.number,
        created_at=run.created_at,
        is_claimed=run.claim_mode == ClaimMode.CLAIM.value,
    )


def _savepoint(
    row: Checkpoint,
    asked: Request | None,
    label: PointLabel | None,
    inspection: PointInspection | None,
    restored_by: list[RestoredRun],
) -> Savepoint:
    path = row.path or ""
    given = asked.parameters.get("type") if asked else None
    reading = reading_of(inspection) if inspection else None
    return Savepoint(
        key=f"{row.run.run_id}-{row.checkpoint_id}",
        pipeline=row.run.pipeline.name,
        run_id=row.run.run_id,
        run_number=row.run.number,
        checkpoint_id=row.checkpoint_id or 0,
        label=label.label if label else "",
        labelled_by=label.labelled_by if label else "",
        labelled_at=label.labelled_at if label else None,
        savepoint_format=SavepointFormat(given or SavepointFormat.CANONICAL),
        path=path,
        completed_at=row.completed_at or row.trigger_at,
        committed_at=row.committed_at,
        state_bytes=row.state_bytes or 0,
        source_records=row.source_records or 0,
        parallelism=row.run.parallelism,
        max_parallelism=row.run.max_parallelism,
        watermark_at=watermark_moment(row.watermark_ms),
        request_label=str(RequestKind(asked.kind).label) if asked else "",
        requester=asked.requester if asked else "",
        reason=asked.reason if asked else "",
        is_disposed=row.status == CheckpointStatus.DISCARDED,
        is_present=may_be_read(path),
        verified_at=_verified_at(row, reading),
        problem=(reading.problem if reading else "") or row.problem,
        reading=reading,
        restored_by=restored_by,
    )


def reading_of(row: PointInspection) -> Reading:
    return Reading(
        files_read=row.files_read,
        files=row.files,
        bytes_read=row.bytes_read,
        bytes=row.bytes,
        moved_at=row.moved_at,
        ended_at=row.ended_at,
        problem=row.problem,
        waiting_for=row.waiting_for,
    )


def _verified_at(row: Checkpoint, reading: Reading | None) -> datetime | None:
    """By the driver, or by a worker since."""
    is_whole = reading is not None and reading.ended_at is not None and not reading.problem
    found = [row.verified_at, reading.ended_at if reading and is_whole else None]
    return max((each for each in found if each is not None), default=None)
