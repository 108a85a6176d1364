"""Continues from the summary at the beginning of a journal whose older segments were deleted.

Rows from before it stay, because they cannot be rebuilt. If some of the deleted part was never
read, the run says so, and gets from the summary the newest event on each matter.
"""

from django.db.models import Q

from ftdash.checkpoints import ledger_fold
from ftdash.checkpoints import projector as checkpoint_projector
from ftdash.checkpoints.ledger_fold import LedgerFold
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.projector import CheckpointFold
from ftdash.jobs.models import Run
from ftdash.metrics import projector as metrics_projector
from ftdash.projection import incident_fold
from ftdash.projection.incident_fold import IncidentFold
from ftdash.projection.run_fold import RunFold
from pipelines.bus.journal_segments import envelopes_of
from pipelines.domain.events import JournalContinued

PARTS = (incident_fold, checkpoint_projector, ledger_fold, metrics_projector)


def go_on_from(run: Run, sequence: int, summary: JournalContinued) -> None:
    """Runs in the caller's transaction; `sequence` is that of the summary, which is folded next.

    1. Delete rows of what follows, and of what was under way: all of that is folded again.
    2. Set the run back to its state at that time.
    3. Make rows of what was never read, as far as the summary has it.
    """
    known = min(run.last_sequence, sequence - 1)
    kept, under_way = envelopes_of(summary.kept), envelopes_of(summary.under_way)
    begun = {each.sequence for each in under_way}
    _forget(run, known, begun)
    run.projection_error, run.driver_lost_at = "", None
    if known < sequence - 1:
        run.journal_gap = (
            f"Events {known + 1:,} to {sequence - 1:,} were deleted with old parts of the journal"
            " before they were read; of what happened then, only the newest is shown."
        )
    incidents, checkpoints, ledger = IncidentFold(run), CheckpointFold(run), LedgerFold(run)
    told = {each.sequence: each for each in (*kept, *under_way)}
    for number in sorted(told):
        if number in begun:
            checkpoints.on(told[number])
        elif number > known:
            ledger.on(told[number])
        if number in begun or number > known:
            incidents.on(told[number])
        RunFold(run).on(told[number])
    for each in (incidents, checkpoints, ledger):
        each.save()
    run.last_sequence = sequence - 1


def _forget(run: Run, known: int, begun: set[int]) -> None:
    for part in PARTS:
        part.forget(run, Q(sequence__gt=known) | Q(sequence__in=begun))
    ended_unheard = Checkpoint.objects.filter(run=run, status=CheckpointStatus.IN_PROGRESS)
    ended_unheard.delete()
