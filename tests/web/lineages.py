"""Runs that were restored from each other, and their points, for tests of the tree."""

from datetime import timedelta

from django.utils import timezone

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.jobs.models import Run
from pipelines.domain.events import LedgerAdvanced
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry, OutputShare, SinkOutput
from pipelines.domain.status import CheckpointKind
from tests.web.journals import new_run


def forked(parent: Run, checkpoint_id: int, name: str = "flights") -> Run:
    return new_run(
        name,
        parent=parent,
        restored_from=f"/points/{checkpoint_id}",
        first_checkpoint_id=checkpoint_id + 1,
    )


def over(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(status="FINISHED", ended_at=timezone.now())
    return run


def points(run: Run, *checkpoint_ids: int) -> None:
    """Completes checkpoints in this order."""
    begin = timezone.now()
    Checkpoint.objects.bulk_create(
        Checkpoint(
            run=run,
            checkpoint_id=checkpoint_id,
            sequence=order,
            attempt=1,
            kind=CheckpointKind.CHECKPOINT.value,
            status=CheckpointStatus.COMPLETED,
            trigger_at=begin,
            completed_at=begin + timedelta(seconds=order),
            path=f"/points/{checkpoint_id}",
        )
        for order, checkpoint_id in enumerate(checkpoint_ids)
    )


def gave(run: Run, number: int) -> LedgerAdvanced:
    """Says that checkpoint `number` gave `3 * number` rows to the sink `delays`."""
    share = OutputShare(checkpoint_id=CheckpointId(number), rows=3 * number, digest=None, tokens=[])
    return LedgerAdvanced(
        entry=LedgerEntry(
            run_id=RunId(run.run_id),
            checkpoint_id=CheckpointId(number),
            records_read=number,
            inputs=[],
            outputs=[SinkOutput(sink=Uid("delays"), subtask=0, share=share)],
        )
    )
