"""The measurements of a run's checkpoints: everything known of each, statistics, and the history.

The history contains all checkpoints that match a filter, one part at a time. A part is found by its
neighbour and not by its number, so the last one is as cheap as the first, and new checkpoints do
not shift it.

Reads rows only. Source: Flink, `AbstractCheckpointStats` and its three kinds, and
`CheckpointStatsSnapshot`.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from django.db import models
from django.db.models import Count, Max, OuterRef, Q, QuerySet, Subquery, Sum

from ftdash.checkpoints.answers import CheckpointRow, Distribution, distribution
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries.checkpoints import (
    FailureCount,
    StatusCounts,
    counts_of,
    counts_of_each,
    failure_counts,
    failure_counts_of_each,
    row_of,
)
from ftdash.checkpoints.queries.completed_history import FIGURES, completed_history, known_of
from ftdash.checkpoints.queries.savepoints import savepoint_format
from ftdash.history.limits import ever
from ftdash.history.models import Counted
from ftdash.jobs.models import Recovery, Request, Run
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.status import CheckpointKind, SavepointFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCheckpoint:
    row: CheckpointRow
    last_acknowledged_ms: float | None  # after the trigger; None: none has, or it is not kept
    acknowledged_state_bytes: int
    acknowledged_uploaded_bytes: int
    acknowledged_persisted_bytes: int
    is_unaligned: bool  # at least one subtask did not wait for its inputs
    savepoint_format: SavepointFormat | None  # None: no savepoint
    ends_run: bool  # a savepoint to stop with

    @property
    def last_known_ms(self) -> float | None:
        """Its newest acknowledgement, or its end if the subtasks' parts are no longer kept."""
        known = self.last_acknowledged_ms
        return self.row.end_to_end_ms if known is None else known

    @property
    def last_acknowledged_at(self) -> datetime | None:
        after_ms = self.last_known_ms
        return None if after_ms is None else self.row.trigger_at + timedelta(milliseconds=after_ms)

    @property
    def took_ms(self) -> float | None:
        """The time to its end, or to the newest acknowledgement. None: there was neither."""
        row = self.row
        if row.status is CheckpointStatus.FAILED and row.failed_at is not None:
            return max(0.0, (row.failed_at - row.trigger_at) / timedelta(milliseconds=1))
        return self.last_known_ms if row.end_to_end_ms is None else row.end_to_end_ms

    @property
    def state_bytes(self) -> int:
        return _or(self.row.state_bytes, self.acknowledged_state_bytes)

    @property
    def uploaded_bytes(self) -> int:
        return _or(self.row.uploaded_bytes, self.acknowledged_uploaded_bytes)

    @property
    def persisted_bytes(self) -> int:
        return _or(self.row.persisted_bytes, self.acknowledged_persisted_bytes)


class _Reported(NamedTuple):
    """The reports of all subtasks of one checkpoint, together."""

    last_ms: float | None
    state_bytes: int
    uploaded_bytes: int
    persisted_bytes: int
    unaligned_count: int


_NOTHING = _Reported(None, 0, 0, 0, 0)


def measurements_of(rows: list[Checkpoint]) -> dict[int, MeasuredCheckpoint]:
    """Returns the measurements by primary key. `rows` must be loaded with their runs."""
    reported = _reported(rows)
    wanted = [row.request_id for row in rows if row.request_id]
    requests = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    return {
        row.pk: _one(row, reported.get(row.pk, _NOTHING), requests.get(row.request_id or ""))
        for row in rows
    }


def _reported(rows: list[Checkpoint]) -> dict[int, _Reported]:
    found = SubtaskPhase.objects.filter(checkpoint__in=rows).order_by().values("checkpoint")
    sums = found.annotate(
        last_ms=Max("acknowledged_ms"),
        state=Sum("state_bytes"),
        uploaded=Sum("uploaded_bytes"),
        persisted=Sum("persisted_bytes"),
        unaligned=Count("pk", filter=Q(is_unaligned=True)),
    )
    columns = ("checkpoint", "last_ms", "state", "uploaded", "persisted", "unaligned")
    return {key: _Reported(*values) for key, *values in sums.values_list(*columns)}


def _one(row: Checkpoint, reported: _Reported, request: Request | None) -> MeasuredCheckpoint:
    command = request.command if request else None
    is_savepoint = row.kind == CheckpointKind.SAVEPOINT.value
    return MeasuredCheckpoint(
        row=row_of(row),
        last_acknowledged_ms=reported.last_ms,
        acknowledged_state_bytes=reported.state_bytes,
        acknowledged_uploaded_bytes=reported.uploaded_bytes,
        acknowledged_persisted_bytes=reported.persisted_bytes,
        is_unaligned=reported.unaligned_count > 0,
        savepoint_format=savepoint_format(command) if is_savepoint else None,
        ends_run=isinstance(command, StopWithSavepoint),
    )


def _or(known: int | None, so_far: int) -> int:
    return so_far if known is None else known


HISTORY_MAX = 10
"""Flink's `web.checkpoints.history`."""


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class CheckpointDistributions:
    """Over the newest completed checkpoints and savepoints."""

    uploaded_bytes: Distribution
    state_bytes: Distribution
    end_to_end_ms: Distribution
    buffered_bytes: Distribution
    persisted_bytes: Distribution
    alignment_ms: Distribution  # of the subtask of each that aligned longest


@dataclass(frozen=True, slots=True)
class Restored:
    """The newest restore of a run."""

    checkpoint_id: int
    at: datetime
    is_savepoint: bool
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    counts: CheckpointCounts
    summary: CheckpointDistributions
    completed: MeasuredCheckpoint | None  # the newest that is no savepoint
    savepoint: MeasuredCheckpoint | None
    failed: MeasuredCheckpoint | None
    restored: Restored | None
    history: list[MeasuredCheckpoint]  # the newest, newest first
    failures: list[FailureCount]  # the most frequent reason first


def statistics_of(run_id: str) -> RunStatistics | None:
    """Returns None if there is no such run."""
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return None
    rows = _with_ids(run_id)
    complete = rows.filter(status__in=COMPLETE)
    savepoints = Q(kind=CheckpointKind.SAVEPOINT.value)
    newest = [
        complete.exclude(savepoints).first(),
        complete.filter(savepoints).first(),
        rows.filter(status=CheckpointStatus.FAILED).first(),
    ]
    history = list(rows[:HISTORY_MAX])
    known = measurements_of([*history, *(row for row in newest if row is not None)])
    completed, savepoint, failed = (known[row.pk] if row else None for row in newest)
    return RunStatistics(
        counts=_counts(run),
        summary=_summary(run_id),
        completed=completed,
        savepoint=savepoint,
        failed=failed,
        restored=_restored(run),
        history=[known[row.pk] for row in history],
        failures=failure_counts(run.pk),
    )


def _with_ids(run_id: str) -> QuerySet[Checkpoint]:
    """Returns the rows newest first, without those that were refused before they got an id."""
    rows = Checkpoint.objects.filter(run__run_id=run_id, checkpoint_id__isnull=False)
    return rows.select_related("run").order_by("-sequence")


def _counts(run: Run) -> CheckpointCounts:
    recoveries = Recovery.objects.filter(run=run, restored_checkpoint_id__isnull=False)
    restored = ever(recoveries, Counted.RESTORED, [run.pk])[run.pk]
    if run.restored_from is not None and run.started_at is not None:
        restored += 1
    return CheckpointCounts(restored=restored, **asdict(counts_of(run.pk)))


def _summary(run_id: str) -> CheckpointDistributions:
    history = completed_history(run_id)
    columns = {name: getattr(history, name) for name in FIGURES}
    return CheckpointDistributions(
        **{name: distribution(known_of(column).tolist()) for name, column in columns.items()}
    )


def _restored(run: Run) -> Restored | None:
    recovery = (
        Recovery.objects.filter(run=run, restored_checkpoint_id__isnull=False)
        .order_by("-sequence")
        .first()
    )
    if recovery is not None:
        return _restored_from(recovery.restored_checkpoint_id, recovery.at, recovery.restored_path)
    return _restored_from(run.first_checkpoint_id - 1, run.started_at, run.restored_from)


def _restored_from(
    checkpoint_id: int | None, at: datetime | None, path: str | None
) -> Restored | None:
    if checkpoint_id is None or at is None or path is None:
        return None
    point = Checkpoint.objects.filter(path=path).first()
    is_savepoint = point is not None and point.kind == CheckpointKind.SAVEPOINT.value
    return Restored(checkpoint_id, at, is_savepoint, path)


@dataclass(frozen=True, slots=True)
class SubtaskShare:
    """One subtask's part in the newest completed checkpoint."""

    start_delay_ms: float
    alignment_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    """The newest completed checkpoint. None: not reported."""

    checkpoint_id: int
    completed_at: datetime | None
    end_to_end_ms: float | None
    state_bytes: int | None
    uploaded_bytes: int | None
    buffered_records: int | None
    buffered_bytes: int | None
    persisted_bytes: int | None
    shares: dict[tuple[str, int], SubtaskShare]  # by vertex and subtask


@dataclass(frozen=True, slots=True)
class CheckpointMeasures:
    counts: StatusCounts
    failures: dict[str, int]  # by CheckpointFailureReason's name
    newest: NewestCheckpoint | None


def checkpoint_measures(runs: Collection[int]) -> dict[int, CheckpointMeasures]:
    """Returns the measures by primary key of the run, with a few queries for any number of runs."""
    counts, failures, newest = counts_of_each(runs), failure_counts_of_each(runs), _newest(runs)
    return {
        run: CheckpointMeasures(
            counts=counts[run],
            failures={each.reason_name: each.count for each in failures[run]},
            newest=newest.get(run),
        )
        for run in runs
    }


def _newest(runs: Collection[int]) -> dict[int, NewestCheckpoint]:
    """A run without a completed checkpoint has no entry."""
    completed = Checkpoint.objects.filter(run=OuterRef("pk"), status__in=COMPLETE)
    newest = completed.order_by("-sequence").values("pk")[:1]
    keys = Run.objects.filter(pk__in=runs).order_by().values(newest=Subquery(newest))
    rows = {row.pk: row for row in Checkpoint.objects.filter(pk__in=keys).order_by()}
    shares: dict[int, dict[tuple[str, int], SubtaskShare]] = {key: {} for key in rows}
    # Without the channels, which are most of a wide checkpoint's bytes.
    parts = SubtaskPhase.objects.filter(checkpoint__in=rows).order_by()
    columns = ("checkpoint", "vertex", "subtask", "start_delay_ms", "alignment_ms")
    for key, vertex, subtask, *share in parts.values_list(*columns):
        shares[key][vertex, subtask] = SubtaskShare(*share)
    return {
        row.run_id: msgspec.convert({**vars(row), "shares": shares[key]}, NewestCheckpoint)
        for key, row in rows.items()
        if row.checkpoint_id is not None
    }


CHUNK = 500
"""How many rows are read at once when all are wanted."""


class StatusChoice(models.TextChoices):
    IN_PROGRESS = "IN_PROGRESS", "in progress"
    COMPLETED = "COMPLETED", "completed"
    KEPT = "KEPT", "completed and kept"
    FAILED = "FAILED", "failed"


_STATUSES = {
    StatusChoice.IN_PROGRESS: (CheckpointStatus.IN_PROGRESS,),
    StatusChoice.COMPLETED: COMPLETE,
    StatusChoice.KEPT: (CheckpointStatus.COMPLETED,),
    StatusChoice.FAILED: (CheckpointStatus.FAILED,),
}


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """None and empty match everything."""

    status: StatusChoice | None = None
    kind: CheckpointKind | None = None
    reason_name: str = ""  # Flink's, for failed ones
    from_id: int | None = None
    to_id: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """Newest first. `newer` and `older` are the places of the neighbours; None: there are none."""

    rows: list[MeasuredCheckpoint]
    match_count: int
    newer: int | None
    older: int | None


EVERYTHING = HistoryFilter()


def history(
    run_id: str,
    chosen: HistoryFilter = EVERYTHING,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int = 25,
) -> HistoryPart | None:
    """Returns the newest part, or the part next to a place that another part gave.

    If nothing is next to the place, returns the newest part. None means that there is no such run.
    """
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return None
    matching = _matching(run, chosen)
    found = _next_to(matching, after, before, limit) or list(_newest_first(matching)[:limit])
    known = measurements_of(found)
    has_newer = bool(found) and matching.filter(sequence__gt=found[0].sequence).exists()
    has_older = bool(found) and matching.filter(sequence__lt=found[-1].sequence).exists()
    return HistoryPart(
        rows=[known[row.pk] for row in found],
        match_count=matching.count(),
        newer=found[0].sequence if has_newer else None,
        older=found[-1].sequence if has_older else None,
    )


def whole_history(run_id: str, chosen: HistoryFilter) -> Iterator[list[CheckpointRow]]:
    """Yields all matches, newest first, in lists that it reads one by one."""
    matching = _newest_first(Checkpoint.objects.filter(run__run_id=run_id).filter(_rule(chosen)))
    found = list(matching[:CHUNK])
    while found:
        yield [row_of(row) for row in found]
        found = list(matching.filter(sequence__lt=found[-1].sequence)[:CHUNK])


def _matching(run: Run, chosen: HistoryFilter) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(run=run).filter(_rule(chosen)).order_by()


def _rule(chosen: HistoryFilter) -> models.Q:
    rule = models.Q()
    if chosen.status is not None:
        rule &= models.Q(status__in=_STATUSES[chosen.status])
    if chosen.kind is not None:
        rule &= models.Q(kind=chosen.kind.value)
    if chosen.reason_name:
        rule &= models.Q(reason_name=chosen.reason_name)
    if chosen.from_id is not None:
        rule &= models.Q(checkpoint_id__gte=chosen.from_id)
    if chosen.to_id is not None:
        rule &= models.Q(checkpoint_id__lte=chosen.to_id)
    return rule


def _newest_first(rows: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
    return rows.select_related("run").order_by("-sequence")


def _next_to(
    matching: QuerySet[Checkpoint], after: int | None, before: int | None, limit: int
) -> list[Checkpoint]:
    """Returns a full part above `after`, or the part below `before`. Empty if there is none."""
    if before is not None:
        return list(_newest_first(matching.filter(sequence__lt=before))[:limit])
    if after is None:
        return []
    above = matching.filter(sequence__gt=after).select_related("run").order_by("sequence")
    found = list(above[:limit])
    return found[::-1] if len(found) == limit else []
