"""Counts the records that a start publishes a second time, at targets that take nothing back.

Counters say how many records each sink had received: at the newest checkpoint that a run of the
pipeline has completed, and at the starting point. The output between the two is published already
and comes again. This module reads journals and changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pipelines.bus.journal import UndecodableEvent, last_event, newest_event
from pipelines.connectors.sink import Sink, TakesNothingBack
from pipelines.domain.errors import UNDECODABLE
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    LedgerBegun,
    OutputPublishedAgain,
)
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import (
    NOTHING_WRITTEN,
    WrittenFigure,
    written_between,
    written_by,
)
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.snapshots import Manifest
from pipelines.points.contents import counters_of

Lineage = Sequence[tuple[RunId, CheckpointId]]


@dataclass(frozen=True, slots=True)
class Published:
    """The newest checkpoint of a run whose output is at the target.

    `checkpoint_id` is None if it is not known which checkpoint that is. `is_at_most` says that it
    is not known whether the sinks have committed it.
    """

    run_id: RunId
    checkpoint_id: CheckpointId | None = None
    counters: Mapping[str, int] | None = None
    lineage: Mapping[RunId, CheckpointId] = field(default_factory=dict)
    is_at_most: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """`lineage` ends with the point itself, and is empty if the run starts from nothing.

    `counters` are like those in `Published`; `sinks` are the operators that the point knows.
    """

    lineage: Lineage = ()
    counters: Mapping[str, int] | None = None
    sinks: frozenset[Uid] = frozenset()

    @classmethod
    def at(cls, manifest: Manifest) -> "Start":
        operators = (each.uid for subtask in manifest.subtasks for each in subtask.operators)
        return cls(
            (*manifest.ancestors, (manifest.run_id, manifest.checkpoint_id)),
            counters_of(manifest),
            frozenset(operators),
        )

    @property
    def point(self) -> tuple[RunId, CheckpointId] | None:
        return self.lineage[-1] if self.lineage else None

    def written_by(self, uid: Uid) -> WrittenFigure | None:
        if uid not in self.sinks:
            return NOTHING_WRITTEN
        return None if self.counters is None else written_by(uid, self.counters)


def newest_published(run: RunDirectory, follows: RunId | None) -> Published | None:
    """Returns the newest checkpoint of this run, or of the last run before it that completed one.

    `follows` is the run before this one. Returns None if nothing was ever published.
    """
    directory, seen = run, {run.run_id}
    while (found := _newest_completed(directory)) is None:
        if follows is None or follows in seen:
            return None
        seen.add(follows)
        directory = RunDirectory(run.path.parent / follows)
        is_beside = directory.path.parent == run.path.parent
        spec = _spec_of(directory) if is_beside else None
        if spec is None:
            return Published(follows)  # of another installation, or deleted
        follows = spec.follows
    return found


def published_up_to(run: RunDirectory) -> Published | None:
    """Does the same as `newest_published`, for a run that was started before."""
    spec = _spec_of(run)
    return Published(run.run_id) if spec is None else newest_published(run, spec.follows)


def repeats(
    run: RunDirectory,
    sinks: Mapping[Uid, Sink],
    start: Start,
    published: Callable[[Uid], Published | None],
) -> Iterator[OutputPublishedAgain]:
    """Yields one event for each sink that publishes records again, or may.

    `published` returns the newest checkpoint whose output is at the target of a sink.
    """
    for uid, sink in sinks.items():
        if not isinstance(sink, TakesNothingBack):
            continue
        newest = published(uid)
        if newest is None:
            continue
        records = _between(run, uid, start, newest)
        if records != 0:
            restored = start.point or (None, None)
            yield OutputPublishedAgain(
                sink=uid,
                target=sink.published_to,
                records=records,
                is_at_most=newest.is_at_most,
                published_by=newest.run_id,
                published_id=newest.checkpoint_id,
                restored_run=restored[0],
                restored_id=restored[1],
            )


def _between(run: RunDirectory, uid: Uid, start: Start, newest: Published) -> int | None:
    """Returns how much `newest` has published since the last point that both share.

    None means not known.
    """
    if newest.checkpoint_id is None or newest.counters is None:
        return None
    line = {**newest.lineage, newest.run_id: newest.checkpoint_id}
    common = _common(line, start.lineage)
    if common == (newest.run_id, newest.checkpoint_id):
        return 0  # the start has it all
    earlier: WrittenFigure | None = NOTHING_WRITTEN
    if common is not None:
        of_common = RunDirectory(run.path.parent / common[0])
        is_start = common == start.point
        earlier = start.written_by(uid) if is_start else _written_at(of_common, common[1], uid)
    return written_between(earlier, written_by(uid, newest.counters))


def _common(
    line: Mapping[RunId, CheckpointId], lineage: Lineage
) -> tuple[RunId, CheckpointId] | None:
    """Returns the last point that the two lineages share."""
    shared = [(run_id, min(until, line[run_id])) for run_id, until in lineage if run_id in line]
    return shared[-1] if shared else None


def _written_at(directory: RunDirectory, id_: CheckpointId, uid: Uid) -> WrittenFigure | None:
    journal = directory.journal_file
    try:
        if last_event(journal) is None:
            return None
        found = newest_event(journal, CheckpointCompleted, lambda e: e.checkpoint_id == id_)
    except (UndecodableEvent, OSError):
        return None  # the event says that it is not known
    return None if found is None else written_by(uid, found.counters)


def _newest_completed(directory: RunDirectory) -> Published | None:
    """Returns None if the run has published nothing."""
    journal, run_id = directory.journal_file, directory.run_id
    try:
        if last_event(journal) is None:
            return None
        completed = newest_event(journal, CheckpointCompleted)
        if completed is None:
            return None
        committed = newest_event(journal, CheckpointCommitted)
        begun = newest_event(journal, LedgerBegun)
    except (UndecodableEvent, OSError):
        return Published(run_id)  # the event says that it is not known
    return Published(
        run_id,
        completed.checkpoint_id,
        completed.counters,
        dict(begun.lineage) if begun is not None else {},
        committed is None or committed.checkpoint_id < completed.checkpoint_id,
    )


def _spec_of(directory: RunDirectory) -> RunSpec | None:
    try:
        return msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    except (OSError, *UNDECODABLE):
        return None  # its published output is not known, and the event says so
