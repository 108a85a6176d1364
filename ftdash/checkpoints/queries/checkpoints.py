"""Reads the rows of checkpoints: lists them, and counts a run's checkpoints by outcome.

The counts include checkpoints whose rows were deleted for their age. Pages, programs and monitors
share these counts. They also share two answers: up to which checkpoint a run has committed output,
and since when the next one has been waiting.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from django.core.paginator import Paginator
from django.db.models import Count, Max, OuterRef, Subquery, TextField
from django.db.models.functions import Cast, Coalesce, Greatest

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    CheckpointHistory,
    CheckpointRow,
    CheckpointSummary,
    RecoveryPoint,
    StoredChannels,
    SubtaskTimeline,
    quantile,
    slowest_of,
)
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries.savepoints import labels_of, may_be_read
from ftdash.history.models import Counted, PrunedCount
from ftdash.jobs.models import PointLabel, Recovery, Request, Run
from ftdash.times import watermark_moment
from pipelines.domain.checkpoint_failures import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Checkpoints that were refused before they had an id count as failed."""

    total: int
    in_progress: int
    completed: int  # including discarded ones
    failed: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """The failures with one reason; `newest_id` is None if none of them got an id."""

    reason_name: str  # Flink's
    reason_text: str
    count: int
    newest_id: int | None
    newest_at: datetime | None


def counts_of(run_pk: int) -> StatusCounts:
    return counts_of_each([run_pk])[run_pk]


def counts_of_each(runs: Collection[int]) -> dict[int, StatusCounts]:
    """Returns the counts by primary key of the run."""
    rows = Checkpoint.objects.filter(run__in=runs).order_by()
    there = rows.values("run_id", "status").annotate(count=Count("pk"))
    gone = PrunedCount.objects.filter(run__in=runs, what__in=CheckpointStatus.values).order_by()
    found: dict[int, Counter[str]] = {run: Counter() for run in runs}
    both = there.values_list("run_id", "status", "count")
    for run, status, count in both.union(gone.values_list("run_id", "what", "count"), all=True):
        found[run][status] += count
    return {
        run: StatusCounts(
            total=counted.total(),
            in_progress=counted[CheckpointStatus.IN_PROGRESS],
            completed=sum(counted[status] for status in COMPLETE),
            failed=counted[CheckpointStatus.FAILED],
        )
        for run, counted in found.items()
    }


def failure_counts(run_pk: int) -> list[FailureCount]:
    return failure_counts_of_each([run_pk])[run_pk]


def failure_counts_of_each(runs: Collection[int]) -> dict[int, list[FailureCount]]:
    """Returns the counts by primary key of the run, the most frequent reason first."""
    failed = Checkpoint.objects.filter(run__in=runs, status=CheckpointStatus.FAILED).order_by()
    there = failed.values("run", "reason_name").annotate(
        count=Count("pk"), newest_id=Max("checkpoint_id"), newest_at=Max("failed_at")
    )
    gone = PrunedCount.objects.filter(run__in=runs, what=Counted.FAILED).order_by()
    found: dict[int, dict[str, FailureCount]] = {run: {} for run in runs}
    both = there.values_list(*_OF_REASON).union(gone.values_list(*_OF_REASON), all=True)
    for run, reason, *row in both:
        more = FailureCount(reason, CheckpointFailureReason[reason].value, *row)
        known = found[run].get(reason)
        found[run][reason] = _together(known, more) if known else more
    return {
        run: sorted(of_run.values(), key=lambda each: (-each.count, each.reason_name))
        for run, of_run in found.items()
    }


def _together(one: FailureCount, other: FailureCount) -> FailureCount:
    return FailureCount(
        one.reason_name,
        one.reason_text,
        one.count + other.count,
        max(filter(None, (one.newest_id, other.newest_id)), default=None),
        max(filter(None, (one.newest_at, other.newest_at)), default=None),
    )


_OF_REASON = ("run", "reason_name", "count", "newest_id", "newest_at")


_committed = Checkpoint.objects.filter(run=OuterRef("pk"), committed_at__isnull=False)
_recovered = Recovery.objects.filter(
    run=OuterRef("pk"), running_at__isnull=False, restored_checkpoint_id__isnull=False
)
COMMITTED_ID = Greatest(
    Coalesce(Subquery(_committed.order_by("-checkpoint_id").values("checkpoint_id")[:1]), 0),
    Coalesce(
        Subquery(
            _recovered.order_by("-restored_checkpoint_id").values("restored_checkpoint_id")[:1]
        ),
        0,
    ),
)
"""The newest committed checkpoint, as an expression on rows of `Run`.

A recovery commits the checkpoint that it restores before it runs, so that one counts too.
"""


def waiting_since(runs: Collection[int]) -> dict[int, datetime]:
    """Returns when the oldest completed, uncommitted checkpoint of each run was triggered.

    Runs without one are left out. The sinks opened their prepared transactions before that time,
    and the targets have held them since.
    """
    waiting = (
        Checkpoint.objects.filter(run=OuterRef("pk"), status__in=COMPLETE)
        .filter(checkpoint_id__gt=OuterRef("committed_id"))
        .order_by("checkpoint_id")
    )
    rows = (
        Run.objects.filter(pk__in=runs)
        .annotate(committed_id=COMMITTED_ID)
        .annotate(waits_since=Subquery(waiting.values("trigger_at")[:1]))
        .exclude(waits_since=None)
    )
    return dict(rows.values_list("pk", "waits_since"))


SUMMARY_CHECKPOINTS = 500


def checkpoints(run_id: str, page: int = 1, per_page: int = 25) -> CheckpointHistory | None:
    """Returns one page of a run's history, or None if there is no such run.

    A page number beyond the last gives the last page.
    """
    run = Run.objects.filter(run_id=run_id).only("run_id").first()
    if run is None:
        return None
    rows = run.checkpoint_rows.order_by("-sequence")
    shown = Paginator(rows, per_page).get_page(page)
    return CheckpointHistory(
        run_id=run_id,
        rows=[row_of(row) for row in shown],
        page=shown.number,
        page_count=shown.paginator.num_pages,
        total_count=shown.paginator.count,
        summary=_summary(run),
    )


def alignment(
    run_id: str, checkpoint_id: int | None = None, *, is_whole: bool = False
) -> AlignmentTimeline | None:
    """Returns the timeline of one checkpoint, by default of the newest completed one.

    None means that there is no such checkpoint.
    """
    rows = Checkpoint.objects.filter(run__run_id=run_id).select_related("run")
    if checkpoint_id is None:
        checkpoint = rows.filter(status__in=COMPLETE).order_by("-sequence").first()
    else:
        checkpoint = rows.filter(checkpoint_id=checkpoint_id).first()
    if checkpoint is None:
        return None
    return timeline_of(checkpoint, is_whole=is_whole)


def is_of_newest_run(pipeline: str, checkpoint_id: int) -> bool:
    """True if the pipeline's newest run has a checkpoint with that id."""
    newest = Run.objects.filter(pipeline__name=pipeline).order_by("-number").first()
    found = Checkpoint.objects.filter(run=newest, checkpoint_id=checkpoint_id)
    return newest is not None and found.exists()


def timeline_of(checkpoint: Checkpoint, *, is_whole: bool = False) -> AlignmentTimeline:
    """`is_whole` decodes all channels now, for a program that needs all of them."""
    subtasks = _subtasks(checkpoint, is_whole)
    return AlignmentTimeline(row_of(checkpoint), subtasks, slowest_of(subtasks))


def recovery_points(pipeline: str, limit: int = 50) -> list[RecoveryPoint]:
    """Returns the points to restore from: savepoints and retained checkpoints, newest first."""
    kept = Checkpoint.objects.filter(
        run__pipeline__name=pipeline, status=CheckpointStatus.COMPLETED, path__isnull=False
    )
    found = kept.prefetch_related("run__pipeline").order_by("-completed_at", "-id")[:limit]
    points = _points(list(found))
    return [replace(points[0], is_newest=True), *points[1:]] if points else []


def recovery_point(path: str) -> RecoveryPoint | None:
    """Returns a recovery point of any pipeline.

    None means that no run known here wrote it, or that it was deleted.
    """
    rows = Checkpoint.objects.filter(path=path, status=CheckpointStatus.COMPLETED)
    found = _points(list(rows.select_related("run__pipeline")[:1]))
    return found[0] if found else None


def _points(rows: list[Checkpoint]) -> list[RecoveryPoint]:
    wanted = [row.request_id for row in rows if row.request_id]
    requests = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    labels = labels_of([row.path or "" for row in rows], wanted)
    return [
        _point(
            row,
            requests.get(row.request_id or ""),
            labels.get(row.path or "", labels.get(row.request_id or "")),
        )
        for row in rows
    ]


def row_of(row: Checkpoint) -> CheckpointRow:
    found = {
        **vars(row),
        "run_id": row.run.run_id,
        "reason_text": row.reason_text,
        "watermark_at": watermark_moment(row.watermark_ms),
    }
    return msgspec.convert(found, CheckpointRow)


def _summary(run: Run) -> CheckpointSummary:
    rows = Checkpoint.objects.filter(run=run)
    counts = counts_of(run.pk)
    newest = rows.filter(status__in=COMPLETE, end_to_end_ms__isnull=False).order_by("-sequence")
    measured = list(newest.values_list("end_to_end_ms", "state_bytes")[:SUMMARY_CHECKPOINTS])
    durations = sorted(duration for duration, _ in measured if duration is not None)
    return CheckpointSummary(
        triggered_count=counts.total,
        completed_count=counts.completed,
        failed_count=counts.failed,
        in_progress_count=counts.in_progress,
        end_to_end_p50_ms=quantile(durations, 0.5) if durations else None,
        end_to_end_p99_ms=quantile(durations, 0.99) if durations else None,
        state_bytes_latest=measured[0][1] if measured else None,
    )


def _subtasks(checkpoint: Checkpoint, is_whole: bool) -> list[SubtaskTimeline]:
    order = {vertex["uid"]: index for index, vertex in enumerate(checkpoint.run.vertices)}
    rows = SubtaskPhase.objects.filter(checkpoint=checkpoint).order_by()
    # As text, so that the channels are decoded only if a page needs them.
    found = rows.annotate(stored=Cast("channels", TextField())).values_list("stored", *_OF_PART)
    channels_of = (lambda stored: list(StoredChannels(stored))) if is_whole else StoredChannels
    parts = [
        SubtaskTimeline(channels=channels_of(stored), **dict(zip(_OF_PART, part, strict=True)))
        for stored, *part in found
    ]
    return sorted(parts, key=lambda part: (order.get(part.vertex, len(order)), part.subtask))


_OF_PART = tuple(
    each.name for each in dataclasses.fields(SubtaskTimeline) if each.name != "channels"
)


def _point(row: Checkpoint, request: Request | None, label: PointLabel | None) -> RecoveryPoint:
    return RecoveryPoint(
        path=row.path or "",
        pipeline=row.run.pipeline.name,
        run_id=row.run.run_id,
        run_number=row.run.number,
        checkpoint_id=row.checkpoint_id or 0,
        kind=row.kind,
        completed_at=row.completed_at or row.trigger_at,
        state_bytes=row.state_bytes or 0,
        source_records=row.source_records or 0,
        parallelism=row.run.parallelism,
        watermark_at=watermark_moment(row.watermark_ms),
        requester=request.requester if request else None,
        reason=request.reason if request else "",
        is_newest=False,
        label=label.label if label else "",
        is_present=may_be_read(row.path or ""),
        verified_at=row.verified_at,
        problem=row.problem,
    )
