"""Folds events into rows of checkpoints and of the ledger.

Collects them over a batch, and writes at its end. Reads no journal and opens no transaction;
`ftdash.projection.projector` hosts it.
"""

import msgspec
from django.conf import settings
from django.db.models import Q

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus, LedgerRow, SubtaskPhase
from ftdash.jobs.models import Run
from ftdash.times import moment
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import check
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointTriggered,
    ClaimedPointDiscarded,
    EngineEvent,
    Envelope,
    LedgerAdvanced,
    LedgerBegun,
    PointsVerified,
    RestorePointRefused,
    RunStarted,
    SubtaskAcknowledged,
)
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.status import CheckpointKind

PRUNE_EVERY_CHECKPOINTS = 100


class CheckpointFold:
    """One batch of one run. Nothing is written before `save`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._touched: dict[CheckpointId, Checkpoint] = {}
        self._refused: list[Checkpoint] = []
        self._phases: list[SubtaskPhase] = []
        self._looked_at: dict[str, dict[str, object]] = {}  # by path; may be another run's

    def on(self, envelope: Envelope) -> None:
        is_whole = not (self._run.journal_begins or self._run.journal_gap)
        if not is_whole and self._was_before(envelope.event):
            return
        match envelope.event:
            case CheckpointTriggered() as event:
                self._open(envelope, event)
            case SubtaskAcknowledged() as event:
                self._acknowledge(event)
            case CheckpointCompleted() as event:
                self._complete(envelope, event)
            case CheckpointFailed() as event:
                self._fail(envelope, event)
            case CheckpointCommitted(checkpoint_id=checkpoint_id):
                self._row(checkpoint_id).committed_at = moment(envelope.at_ms)
            case CheckpointDiscarded(checkpoint_id=checkpoint_id):
                self._row(checkpoint_id).status = CheckpointStatus.DISCARDED
            case ClaimedPointDiscarded(path=path):
                # The row belongs to the run that wrote it; only the rest of the point is updated
                # there.
                Checkpoint.objects.filter(path=path).update(status=CheckpointStatus.DISCARDED)
            case PointsVerified(paths=paths):
                found = {"verified_at": moment(envelope.at_ms), "problem": ""}
                self._looked_at.update(dict.fromkeys(paths, found))
            case RestorePointRefused(path=path, message=message):
                self._looked_at[path] = {"problem": message}
            case RunStarted():
                self._fail_unfinished(envelope)

    def save(self) -> None:
        rows = [*self._touched.values(), *self._refused]
        Checkpoint.objects.bulk_create([row for row in rows if row.pk is None])
        Checkpoint.objects.bulk_create(  # `bulk_update` takes ten times as long for a few rows
            [row for row in rows if row.pk is not None],
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=_CHANGING,
        )
        SubtaskPhase.objects.bulk_create(self._phases, ignore_conflicts=True)
        for path, found in self._looked_at.items():
            Checkpoint.objects.filter(path=path).update(**found)
        newest = max(self._touched, default=0)
        if self._touched and newest % PRUNE_EVERY_CHECKPOINTS < len(self._touched):
            self._prune(newest)

    def _open(self, envelope: Envelope, event: CheckpointTriggered) -> None:
        self._touched[event.checkpoint_id] = Checkpoint(
            run=self._run,
            checkpoint_id=event.checkpoint_id,
            sequence=envelope.sequence,
            attempt=envelope.attempt,
            kind=event.kind.value,
            status=CheckpointStatus.IN_PROGRESS,
            trigger_at=moment(event.trigger_ms),
            subtask_count=event.subtask_count,
            request_id=event.request_id,
        )

    def _acknowledge(self, event: SubtaskAcknowledged) -> None:
        row = self._row(event.checkpoint_id)
        row.acknowledged_count += 1
        row.alignment_ms = max(row.alignment_ms or 0.0, event.phases.alignment_ms)
        fields = msgspec.to_builtins(event.phases)
        self._phases.append(SubtaskPhase(checkpoint=row, **fields))

    def _complete(self, envelope: Envelope, event: CheckpointCompleted) -> None:
        row = self._row(event.checkpoint_id)
        row.status = CheckpointStatus.COMPLETED
        row.completed_at = moment(envelope.at_ms)
        for name in _MEASURED:
            setattr(row, name, getattr(event, name))

    def _fail(self, envelope: Envelope, event: CheckpointFailed) -> None:
        row = self._refusal(envelope) if event.checkpoint_id is None else None
        row = row or self._row(event.checkpoint_id or CheckpointId(0))
        row.status = CheckpointStatus.FAILED
        row.failed_at = moment(envelope.at_ms)
        row.reason_name = event.reason.name
        row.message = "" if event.message == row.reason_text else event.message
        row.request_id = row.request_id or event.request_id

    def _refusal(self, envelope: Envelope) -> Checkpoint:
        """A request that was refused before it got an id also leaves a row."""
        row = Checkpoint(
            run=self._run,
            sequence=envelope.sequence,
            attempt=envelope.attempt,
            kind=CheckpointKind.CHECKPOINT.value,
            trigger_at=moment(envelope.at_ms),
        )
        self._refused.append(row)
        return row

    def _fail_unfinished(self, envelope: Envelope) -> None:
        """Fails the checkpoints that the previous driver had begun: a new driver has taken over."""
        stored = Checkpoint.objects.filter(run=self._run, status=CheckpointStatus.IN_PROGRESS)
        for row in stored:
            if row.checkpoint_id is not None:
                self._touched.setdefault(CheckpointId(row.checkpoint_id), row)
        for row in self._touched.values():
            if row.status == CheckpointStatus.IN_PROGRESS:
                row.status = CheckpointStatus.FAILED
                row.failed_at = moment(envelope.at_ms)
                row.reason_name = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN.name
                row.message = "The driver died while this checkpoint was under way."

    def _was_before(self, event: EngineEvent) -> bool:
        """True if it was triggered in a deleted part of the journal, and has no row (any more)."""
        checkpoint_id = getattr(event, "checkpoint_id", None)
        if checkpoint_id is None or isinstance(event, CheckpointTriggered):
            return False
        if checkpoint_id in self._touched:
            return False
        return not Checkpoint.objects.filter(run=self._run, checkpoint_id=checkpoint_id).exists()

    def _row(self, checkpoint_id: CheckpointId) -> Checkpoint:
        if checkpoint_id not in self._touched:
            stored = Checkpoint.objects.filter(run=self._run, checkpoint_id=checkpoint_id).first()
            check(stored is not None, "a checkpoint is triggered first", checkpoint=checkpoint_id)
            self._touched[checkpoint_id] = stored or Checkpoint()
        return self._touched[checkpoint_id]

    def _prune(self, newest: int) -> None:
        oldest = newest - settings.PHASE_RETENTION_CHECKPOINTS
        SubtaskPhase.objects.filter(
            checkpoint__run=self._run, checkpoint__checkpoint_id__lte=oldest
        ).delete()


def forget(run: Run, rows: Q) -> None:
    """Deletes rows folded from these lines of the journal, so that they can be folded again."""
    Checkpoint.objects.filter(rows, run=run).delete()
    LedgerRow.objects.filter(rows, run=run).delete()


_MEASURED = (
    "path",
    "end_to_end_ms",
    "state_bytes",
    "uploaded_bytes",
    "buffered_records",
    "buffered_bytes",
    "persisted_bytes",
    "source_records",
    "watermark_ms",
    "counters",
)
_CHANGING = (
    *_MEASURED,
    "status",
    "completed_at",
    "failed_at",
    "committed_at",
    "acknowledged_count",
    "alignment_ms",
    "reason_name",
    "message",
    "request_id",
)


ROWS_KEPT = 200
"""A wide pipeline's entry takes tens of kilobytes; the journal has all entries."""


class LedgerFold:
    """One batch of one run. Nothing is written before `save`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._new: list[LedgerRow] = []
        self._void_behind: int | None = None

    def on(self, envelope: Envelope) -> None:
        match envelope.event:
            case LedgerBegun(lineage=lineage):
                self._begin(dict(lineage).get(RunId(self._run.run_id), 0))
            case LedgerAdvanced(entry=entry):
                row = LedgerRow(
                    run=self._run,
                    sequence=envelope.sequence,
                    checkpoint_id=entry.checkpoint_id,
                    attempt=envelope.attempt,
                    at=moment(envelope.at_ms),
                    records_read=entry.records_read,
                    inputs=msgspec.to_builtins(entry.inputs),
                    outputs=msgspec.to_builtins(entry.outputs),
                )
                self._new.append(row)

    def save(self) -> None:
        rows = LedgerRow.objects.filter(run=self._run)
        if self._void_behind is not None:
            rows.filter(checkpoint_id__gt=self._void_behind).update(is_void=True)
        if not self._new:
            return
        LedgerRow.objects.bulk_create(self._new[-ROWS_KEPT:])
        oldest_kept = rows.order_by("-sequence").values_list("sequence", flat=True)[ROWS_KEPT - 1 :]
        for sequence in oldest_kept[:1]:
            rows.filter(sequence__lt=sequence).delete()

    def _begin(self, restored_id: int) -> None:
        for row in self._new:
            row.is_void = row.is_void or row.checkpoint_id > restored_id
        known = self._void_behind
        self._void_behind = restored_id if known is None else min(known, restored_id)
