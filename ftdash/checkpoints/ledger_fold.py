"""Folds the newest part of a run's ledger into rows; `ftdash.projection.projector` hosts it."""

import msgspec
from django.db.models import Q

from ftdash.checkpoints.models import LedgerRow
from ftdash.jobs.models import Run
from ftdash.times import moment
from pipelines.domain.events import Envelope, LedgerAdvanced, LedgerBegun
from pipelines.domain.ids import RunId

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


def forget(run: Run, rows: Q) -> None:
    """Delete what was folded from those lines of the run's journal, to fold it again."""
    LedgerRow.objects.filter(rows, run=run).delete()
