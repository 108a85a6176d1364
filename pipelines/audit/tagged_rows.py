"""Judges rows of which each carries a run and a number: what a store holds, told apart by them.

Rows that are only inserted are compared with their digest. Of upserted rows, one that was written
again carries the newer checkpoint only, and what it was before is gone. So of each checkpoint at
most as many can be there as were given. Where they are exactly as many, none was overwritten, and
their digest is compared too; where they are fewer, they are counted.

Reads nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.output import (
    Covers,
    Difference,
    Rows,
    compared,
    given,
    judged_by_cut,
    total,
)
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import SinkOutput

NO_ROWS = Rows(0, 0)


class Tags(Enum):
    """What the number means that a row carries."""

    OF_CHECKPOINT = auto()
    """Which gave it; the row is never written again."""
    OF_NEWEST = auto()
    """Which gave it last."""
    OF_INTERVAL = auto()
    """One more than the checkpoint before it: all that is known while it is written."""


class TaggedRows:
    """`place` begins a sentence, `part` names the same for a report."""

    def __init__(self, place: str, part: str, tags: Tags) -> None:
        self._place = place
        self._part = part
        self._tags = tags
        self._by_cut: dict[Cut, Rows] = {}

    def add(self, cut: Cut, rows: Rows) -> None:
        self._by_cut[cut] = total([self._by_cut.get(cut, NO_ROWS), rows])

    def stray(self, history: History, sink: Uid) -> Difference | None:
        ours, known = history.known_runs, history.cuts_of(sink)
        cuts = sorted(self._by_cut)
        settled = history.judged(cuts)  # not so: a negative number, the checkpoint is not known yet
        for cut in (cut for cut in cuts if cut.run_id not in ours):
            what = f"{self._place} has rows of a run that this one does not descend from."
            return Difference(what, cut, found=self._by_cut[cut])
        if self._tags is Tags.OF_INTERVAL:
            return None  # every interval before a committed point is judged with that point
        for cut in (cut for cut in settled if cut not in known):
            what = f"{self._place} has rows of a checkpoint that gave it none."
            return Difference(what, cut, found=self._by_cut[cut])
        is_at_rest = self._tags is Tags.OF_NEWEST and len(settled) == len(cuts)
        return self._newest_is_gone(history, sink) if is_at_rest else None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        if self._tags is not Tags.OF_INTERVAL:
            return judged_by_cut(point, sink, self._judge)
        outputs = [each for of_cut in point.given_to(sink).values() for each in of_cut]
        found = total(rows for cut, rows in self._by_cut.items() if point.spans(cut))
        return self._compared(point.cut, outputs, found)

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        found = self._by_cut.get(cut, NO_ROWS)
        if self._tags is Tags.OF_NEWEST and found.count < given(outputs).count:
            return Covers.COUNTED
        return self._compared(cut, outputs, found)

    def _compared(
        self, cut: Cut, outputs: Sequence[SinkOutput], found: Rows
    ) -> Difference | Covers:
        judged = compared(cut, outputs, {self._part: found})
        return replace(judged, part=self._part) if isinstance(judged, Difference) else judged

    def _newest_is_gone(self, history: History, sink: Uid) -> Difference | None:
        """Of the rows that were given last none is overwritten, as long as no newer ones come."""
        told = [each for point in history.committed for each in point.given_to(sink).items()]
        for cut, outputs in told[-1:]:
            if cut not in self._by_cut and given(outputs).count:
                what = f"{self._place} has none of the rows that were given to it last."
                return Difference(what, cut, given(outputs), NO_ROWS)
        return None
