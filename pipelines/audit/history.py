"""Decides which output a run has, from the ledger in the journals, along the points' lineage.

Decides which entries are valid. A recovery from an older point voids the entries behind that point.
Of an earlier run's entries, only those up to the restored point belong to this run. Reads only
journals.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.bus.journal import every_envelope
from pipelines.bus.journal_segments import envelopes_of
from pipelines.domain.events import (
    CheckpointCommitted,
    EngineEvent,
    JobStatusChanged,
    JournalContinued,
    LedgerAdvanced,
    LedgerBegun,
    RunEnded,
)
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry, SinkOutput
from pipelines.domain.status import JobStatus

Unknown = dict[RunId, CheckpointId]

FindJournal = Callable[[RunId], Path | None]
"""Finds another run's journal; None: it no longer exists."""


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """The rows that `run_id` gave its sinks between two barriers; `checkpoint_id` is the later."""

    run_id: RunId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Point:
    """A completed checkpoint, and the output that it was the first to contain.

    `after`: the previous point of the same run, or its newest unknown one; 0: there is none.
    """

    cut: Cut
    after: CheckpointId
    entry: LedgerEntry
    outputs: tuple[SinkOutput, ...]

    def spans(self, cut: Cut) -> bool:
        """True if this is the first point that contains what sinks were given at `cut`."""
        is_of_run = cut.run_id == self.cut.run_id
        return is_of_run and self.after < cut.checkpoint_id <= self.cut.checkpoint_id

    def given_to(self, sink: Uid) -> dict[Cut, list[SinkOutput]]:
        """Returns the sink's output by cut, oldest first.

        There is more than one cut if checkpoints before the point were aborted.
        """
        cuts: dict[Cut, list[SinkOutput]] = {}
        for output in sorted(self.outputs, key=lambda each: each.share.checkpoint_id):
            if output.sink == sink:
                cut = Cut(self.cut.run_id, output.share.checkpoint_id)
                cuts.setdefault(cut, []).append(output)
        return cuts


@dataclass(frozen=True, slots=True)
class History:
    """`committed`: points whose output must be there, oldest first; `pending`: it may be there.

    `unknown`: up to which checkpoint the ledger of a run of the lineage is missing.
    """

    run_id: RunId
    committed: tuple[Point, ...]
    pending: tuple[Point, ...]
    unknown: Unknown
    gaps: tuple[Gap, ...] = ()
    """Lost input that the run or one before it skipped, because a person accepted that."""

    def cuts_of(self, sink: Uid) -> set[Cut]:
        """The cuts at which the sink was given output that must be there."""
        return {cut for point in self.committed for cut in point.given_to(sink)}

    def judged(self, cuts: Iterable[Cut]) -> list[Cut]:
        """The cuts that have a ledger and do not lie behind their run's newest committed point."""
        newest = {point.cut.run_id: point.cut.checkpoint_id for point in self.committed}
        return [
            cut
            for cut in cuts
            if self.unknown.get(cut.run_id, NO_CHECKPOINT)
            < cut.checkpoint_id
            <= newest.get(cut.run_id, NO_CHECKPOINT)
        ]

    @property
    def known_runs(self) -> set[RunId]:
        """The runs whose output may be in the target."""
        points = (*self.committed, *self.pending)
        return {self.run_id, *self.unknown, *(point.cut.run_id for point in points)}


def read_history(run_id: RunId, journal: Path, find_journal: FindJournal) -> History:
    """Raises UndecodableEvent when a line cannot be read."""
    own = _Ledger(run_id)
    for event in _events(journal):
        own.on(event)
    earlier, unknown, gaps = _earlier(own, find_journal)
    committed = [e for e in own.entries if e.checkpoint_id <= own.committed_id]
    pending = [e for e in own.entries if e.checkpoint_id > own.committed_id]
    if own.has_run:
        committed = earlier + committed
    else:  # the restored point may not have been committed yet
        pending = earlier + pending
    points = _points(committed + pending, unknown)
    return History(
        run_id,
        committed=tuple(points[: len(committed)]),
        pending=tuple(points[len(committed) :]),
        unknown=unknown,
        gaps=tuple(gaps),
    )


def _earlier(
    own: "_Ledger", find_journal: FindJournal
) -> tuple[list[LedgerEntry], Unknown, list[Gap]]:
    """Returns the entries of the runs that the run descends from, up to where it left each of them.

    Also returns what is unknown, and the gaps of all of them and of the run itself.
    """
    entries: list[LedgerEntry] = []
    gaps: list[Gap] = []
    unknown: Unknown = {own.run_id: own.unknown_id}
    for run_id, checkpoint_id in own.ancestors:
        ledger = _ledger_up_to(run_id, checkpoint_id, find_journal(run_id))
        if ledger.newest_id < checkpoint_id and own.start is not None:
            ledger.enter_again(own.start)
        entries += ledger.entries
        gaps += ledger.gaps
        unknown[run_id] = ledger.unknown_id
    known = {run_id: unknown[run_id] for run_id in unknown if unknown[run_id]}
    return entries, known, [*gaps, *own.gaps]


def _ledger_up_to(run_id: RunId, checkpoint_id: CheckpointId, journal: Path | None) -> "_Ledger":
    """The ledger as of that checkpoint: what came later belongs to another branch."""
    ledger = _Ledger(run_id)
    for event in _events(journal) if journal else ():
        ledger.on(event)
        if ledger.newest_id == checkpoint_id:
            break
    ledger.leave_at(checkpoint_id)
    return ledger


def _points(entries: Iterable[LedgerEntry], unknown: Unknown) -> list[Point]:
    """Assigns each output to the first point that has it; drops it if that point is unknown."""
    points: list[Point] = []
    newest: dict[RunId, CheckpointId] = dict(unknown)
    known: set[tuple[Uid, int, Cut]] = set()
    for entry in entries:
        new = []
        for output in entry.outputs:
            key = (output.sink, output.subtask, Cut(entry.run_id, output.share.checkpoint_id))
            is_known = output.share.checkpoint_id > unknown.get(entry.run_id, NO_CHECKPOINT)
            if is_known and key not in known:
                new.append(output)
            known.add(key)
        cut, after = Cut(entry.run_id, entry.checkpoint_id), newest.get(entry.run_id, NO_CHECKPOINT)
        points.append(Point(cut, after, entry, tuple(new)))
        newest[entry.run_id] = entry.checkpoint_id
    return points


def _events(journal: Path) -> Iterator[EngineEvent]:
    return (envelope.event for envelope in every_envelope(journal))


class _Ledger:
    """Folds one run's journal."""

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self._entries: dict[CheckpointId, LedgerEntry] = {}  # ids ascend
        self.lineage: list[tuple[RunId, CheckpointId]] = []
        self.start: LedgerEntry | None = None
        self.gaps: list[Gap] = []  # of input, at the start of the run
        self.committed_id: int = NO_CHECKPOINT
        self.unknown_id = NO_CHECKPOINT  # output up to there was never entered
        self.has_run = False  # an attempt has committed what its point had prepared
        self._restored_id = NO_CHECKPOINT
        self._has_begun = False
        self._has_read = False

    @property
    def entries(self) -> list[LedgerEntry]:
        return list(self._entries.values())

    @property
    def newest_id(self) -> CheckpointId:
        return next(reversed(self._entries), NO_CHECKPOINT)

    @property
    def ancestors(self) -> list[tuple[RunId, CheckpointId]]:
        return [each for each in self.lineage if each[0] != self.run_id]

    def leave_at(self, checkpoint_id: CheckpointId) -> None:
        """Ends the ledger at that checkpoint, from which another run continues."""
        self._forget_behind(checkpoint_id)
        is_known = self._has_begun and self.unknown_id < checkpoint_id
        self.unknown_id = self.unknown_id if is_known else checkpoint_id

    def enter_again(self, start: LedgerEntry) -> None:
        """Enters a starting point, which the driver that completed it may not have entered."""
        if start.run_id == self.run_id and start.checkpoint_id > self.unknown_id:
            self._enter(start)

    def on(self, event: EngineEvent) -> None:
        is_first, self._has_read = not self._has_read, True
        match event:
            case JournalContinued() if is_first:
                self._go_on(event)
            case LedgerBegun():
                self._begin(event)
            case LedgerAdvanced(entry=entry):
                self._enter(entry)
            case CheckpointCommitted(checkpoint_id=checkpoint_id):
                self.committed_id = max(self.committed_id, checkpoint_id)
            case JobStatusChanged(status=JobStatus.RUNNING):
                self.has_run = True
                self.committed_id = max(self.committed_id, self._restored_id)
            case RunEnded(status=JobStatus.FINISHED):  # only when all is committed
                self.has_run = True
                self.committed_id = self.newest_id
            case _:
                pass

    def _go_on(self, before: JournalContinued) -> None:
        """Takes the two newest of the earlier entries; the others are gone.

        The output of the newest entry is what lies behind the other.
        """
        for envelope in envelopes_of(before.kept):
            self.on(envelope.event)
        self.unknown_id = [self._restored_id, self._restored_id, *self._entries][-2]
        for old in [each for each in self._entries if each <= self.unknown_id]:
            del self._entries[old]

    def _begin(self, event: LedgerBegun) -> None:
        self.lineage, self.start, self.gaps = event.lineage, event.start, event.gaps
        is_first, self._has_begun = not self._has_begun, True
        self._restored_id = dict(self.lineage).get(self.run_id, NO_CHECKPOINT)
        self._forget_behind(self._restored_id)
        self.committed_id = min(self.committed_id, self._restored_id)
        if is_first:  # the run is older than its ledger
            self.unknown_id = self._restored_id
        if event.start is not None:
            self.enter_again(event.start)

    def _enter(self, entry: LedgerEntry) -> None:
        self._entries.setdefault(entry.checkpoint_id, entry)

    def _forget_behind(self, checkpoint_id: CheckpointId) -> None:
        for void in [each for each in self._entries if each > checkpoint_id]:
            del self._entries[void]
