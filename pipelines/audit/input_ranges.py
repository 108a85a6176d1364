"""Audits what sources read: each split continues at every checkpoint where the last one left it.

Uses only the ledger, along the lineage of points, and does not ask the sources. A gap is input that
no checkpoint read, an overlap is input that two read. The counts of sources and run must agree.

Does not compare what the ledger does not know: where the reading of a split began, and the step
across a point that its driver completed but did not live to enter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.output import Difference
from pipelines.audit.report import InputReport, checkpoint_of, described, run_of
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.ledger import LedgerEntry, SourceInput, SplitRange


def input_reports(history: History) -> list[InputReport]:
    """Reports on every source that the ledger names, sorted by name."""
    points = history.committed
    named = {each.source for point in points for each in point.entry.inputs}
    return [_audited(source, points) for source in sorted(named)]


def _audited(source: Uid, points: Sequence[Point]) -> InputReport:
    reading = _Reading(source)
    proven: Cut | None = None
    difference: Difference | None = None
    for before, point in zip((None, *points), points, strict=False):
        difference = reading.go_on(point, before.entry if before else None)
        if difference is not None:
            break
        proven = point.cut
    return InputReport(
        source=source,
        records=reading.records,
        proven_run_id=run_of(proven),
        proven_checkpoint_id=checkpoint_of(proven),
        unknown_checkpoint_id=reading.unknown_id,
        difference=described(difference) if difference else None,
    )


@dataclass(slots=True)
class _Reading:
    source: Uid
    records: int = 0
    unknown_id: CheckpointId | None = None
    _ends: dict[str, int | None] = field(default_factory=dict)  # where each split was left

    def go_on(self, point: Point, before: LedgerEntry | None) -> Difference | None:
        entry = point.entry
        if not entry.inputs:  # a starting point that was entered again
            self._ends = {}
            self.unknown_id = entry.checkpoint_id
            return None
        if before is not None and not _add_up(before, entry):
            read = entry.records_read - before.records_read
            return Difference(
                f"The sources say that they read {sum(i.records for i in entry.inputs):,} records,"
                f" and the run that it read {read:,}.",
                point.cut,
            )
        for each in entry.inputs:
            if each.source == self.source:
                return self._take(point.cut, each)
        return None

    def _take(self, cut: Cut, read: SourceInput) -> Difference | None:
        for split in read.splits:
            if split.split in self._ends and self._ends[split.split] != split.first:
                return Difference(self._told(split), cut, part=f"split {split.split}")
            self._ends[split.split] = split.end
        self.records += read.records
        return None

    def _told(self, split: SplitRange) -> str:
        left, first = self._ends[split.split], split.first
        if left is None or first is None or first < left:
            until = "its end" if left is None else f"offset {left:,}"
            return f"Split {split.split} was read again from {_place(first)}, read up to {until}."
        return f"Split {split.split} was left at offset {left:,} and goes on at offset {first:,}."


def _place(offset: int | None) -> str:
    return "its beginning" if offset is None else f"offset {offset:,}"


def _add_up(before: LedgerEntry, entry: LedgerEntry) -> bool:
    """A restored run may have lost or gained a source."""
    if before.run_id != entry.run_id:
        return True
    read = sum(each.records for each in entry.inputs)
    return entry.records_read - before.records_read == read
