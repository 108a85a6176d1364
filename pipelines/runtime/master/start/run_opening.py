"""Opens a run: finds its points, reports its settings, and deletes unneeded rows of DataFrames.

A fresh start has Spark write new rows. Earlier rows stay as long as a point that reads them may be
restored. Runs know nothing of each other, so each leaves a note next to the rows that says where
its points are. In doubt all rows stay: a run that has not ended may name any of them, and a storage
that does not answer, or is not mounted, may hold points.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.bus.journal import JournalWriter, last_event
from pipelines.connectors.files.data_frame import DataFrameRows, rows_of
from pipelines.connectors.sink_bases import HoldsTransactions
from pipelines.connectors.split_progress import NamedPositions
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected, Retryable
from pipelines.domain.events import (
    CheckpointFailed,
    CheckpointTriggered,
    DamageRemembered,
    JobStatusChanged,
    RunEnded,
    RunStarted,
    RunStopping,
)
from pipelines.domain.guarantees import end_to_end
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.run import MEMORY, RunDirectory, SnapshotPlaces, scheme_of
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import StopStage
from pipelines.points.fit import PointFit
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.run_context import RunContext, newest_completed
from pipelines.runtime.master.start.starting_point import (
    claimed_point,
    next_checkpoint_id,
    own_points,
)
from pipelines.storage.store import CheckpointStore


def run_started(context: RunContext) -> RunStarted:
    spec, pipeline = context.spec, context.pipeline
    found = end_to_end(context.settings.barriers.mode, pipeline.ends)
    return RunStarted(
        pipeline=spec.pipeline,
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        master=spec.master,
        guarantee=found.guarantee,
        guarantee_reason=found.reason,
        settings=spec.settings,
        restored_from=spec.restore_from,
        driver_pid=os.getpid(),
        renamed_uids=spec.renamed_uids,
        accepted_gaps=spec.accepted_gaps,
        vertices=pipeline.graph.shape(),
        transaction_timeouts_ms={
            uid: sink.transaction_timeout_ms
            for uid, sink in pipeline.sinks.items()
            if isinstance(sink, HoldsTransactions)
        },
    )


@dataclass(frozen=True, slots=True)
class FoundPoints:
    """The points that earlier drivers of a run have left in its storage."""

    retained: RetainedPoints
    given_up: list[str]
    """Locations of checkpoints that failed while being published and could not be deleted."""


def found_points(context: RunContext) -> FoundPoints:
    """Raises Retryable if the storage does not answer, or answers without the run's points."""
    is_given_up = _given_up(context.journal)
    found = own_points(context.places, context.store)
    own = [point for point in found if not is_given_up(point)]
    given_up = [point.location for point in found if is_given_up(point)]
    if how_it_ended(context.journal) is None:
        _check_newest_is_there(context, own)
    points = (*claimed_point(context.spec, context.store), *own)
    return FoundPoints(
        RetainedPoints(context.settings.checkpointing.retained_count, points), given_up
    )


def fits_no_point(context: RunContext) -> bool:
    """Returns True if the run has points and, by their manifests, its code fits none of them. Such
    a run fails before it needs a slot. Asks no source. Raises what `found_points` raises."""
    points = found_points(context).retained.every_newest_first()
    if not points:
        return False
    try:
        fit = PointFit.of(context.spec, context.pipeline, reads_on=False)
    except Rejected:
        return True
    return not any(_may_fit(fit, context, point) for point in points)


def _may_fit(fit: PointFit, context: RunContext, point: RetainedPoint) -> bool:
    try:
        fit.check(context.store.manifest(point.location), point.location)
    except CorruptSnapshot:
        return True  # the choice of a point reports the damage
    except Rejected:
        return False
    return True


def damaged_files(journal: JournalWriter) -> list[str]:
    """Returns the damaged files that earlier drivers of the run remembered."""
    newest = journal.newest(DamageRemembered)
    return newest.remembered if newest is not None else []


def _given_up(journal: JournalWriter) -> Callable[[RetainedPoint], bool]:
    """Returns a test for points that an earlier driver reported as failed: the run continued
    without them. If such a point was drained, a run that starts from it would lose later records.

    Older journals name only the newest point that was meant to end the run and did not.
    """
    unpublished = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    failed = journal.every(CheckpointFailed)
    ids = {event.checkpoint_id for event in failed if event.reason is unpublished}
    newest = journal.newest(RunStopping)
    is_over = newest is not None and newest.stage is StopStage.GIVEN_UP
    location = newest.path if newest is not None and is_over else None
    return lambda point: point.checkpoint_id in ids or point.location == location


def _check_newest_is_there(context: RunContext, own: Collection[RetainedPoint]) -> None:
    """Raises Retryable if the newest point is gone because its disk is not mounted.

    Retention never deletes the newest point, so otherwise a person has deleted it. The run waits
    for the disk, because going back to an older point would set output aside without need.
    """
    newest = newest_completed(context.journal)
    if newest is None or newest.checkpoint_id in {point.checkpoint_id for point in own}:
        return
    if own or scheme_of(context.places.checkpoints) == MEMORY:
        root = newest.path.rpartition("/")[0]
        is_of_this_disk = Path(root).is_relative_to(context.storage_roots[0])
        if is_of_this_disk or scheme_of(root):
            return  # it is gone for good, which `NextStart` reports
        is_mounted = bool(context.store.names(root))
        # Its disk may have come back after `own` was read.
        is_back = bool(context.store.published(root, among=[newest.path.rpartition("/")[2]]))
        if is_mounted and not is_back:
            return
    raise Retryable(
        f"Checkpoint {newest.checkpoint_id} was completed in {newest.path}, and"
        f" {'it is not' if own else 'no point of the run is'} there any more: see that the storage"
        " is mounted, or start a new run."
    )


def stopping_of(journal: JournalWriter, points: RetainedPoints) -> RunStopping | None:
    """The point with which the run has to end, as an earlier driver has recorded it.

    If that driver died while it published the last point, the point is complete if it is the
    newest of the `points` in the storage.
    """
    newest = journal.newest(RunStopping)
    if newest is None or newest.stage is StopStage.PUBLISHED:
        return newest
    found = [point.location for point in points.every_newest_first()[:1]]
    is_complete = newest.stage is StopStage.PUBLISHING and found == [newest.path]
    return newest if is_complete else None


def first_checkpoint_id(context: RunContext) -> CheckpointId:
    triggered = context.journal.newest(CheckpointTriggered)
    newest = triggered.checkpoint_id if triggered else NO_CHECKPOINT
    return next_checkpoint_id(context.places, context.store, context.spec, newest)


def how_it_ended(journal: JournalWriter) -> JobStatusChanged | None:
    """Returns how the run ended if only its clean-up is left to do, else None."""
    newest = journal.newest(JobStatusChanged)
    return newest if newest is not None and newest.status.is_terminal else None


NOTE = ".json"
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger(__name__)


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The note of one run that reads rows of the directory."""

    run: str  # its directory
    checkpoints: str
    savepoints: str


class InDoubt(Exception):
    """Some rows may be needed, but it is not known which. The message says why, as a clause."""


class KeptRows:
    """The kept rows of one source, as the driver of one run sees them."""

    def __init__(
        self,
        source: DataFrameRows,
        run: RunDirectory,
        places: SnapshotPlaces,
        store: CheckpointStore,
    ) -> None:
        self._source = source
        self._store = store
        self._note = _Note(
            run=str(run.path), checkpoints=places.checkpoints, savepoints=places.savepoints
        )

    def leave_note(self) -> None:
        """Call before anything is read. Logs a warning if the run may not write there: other runs
        may then delete the rows that it reads. Raises Retryable if the place does not answer.
        """
        text = msgspec.json.encode(self._note)
        name = f"{Path(self._note.run).name}-{hashlib.blake2b(text, digest_size=4).hexdigest()}"
        try:
            self._source.note_reader(name, text)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise Retryable(f"{self._source.notes} cannot be written: {error}") from error
            log.warning("%s: %s; rows may go that this run reads", self._source.notes, error)

    def delete_unneeded(self, check_held: Callable[[], None] = lambda: None) -> None:
        """Call in a run that has no point yet, but rows of its own.

        Raises what `check_held` raises if another driver has taken the run over: that driver may
        have kept rows meanwhile, which look like earlier rows to this one.
        """
        try:
            needed = set(self._needed())
            for rows in self._source.earlier_rows():
                if rows.name not in needed:
                    check_held()
                    self._source.forget(rows)
                    log.info("%s is named by no point any more, and was deleted", rows)
        except (InDoubt, Retryable, Rejected, OSError) as error:
            log.warning("Earlier rows in %s stay: %s", self._source.directory, error)

    def _needed(self) -> Iterator[str]:
        for file in self._notes():
            try:
                note = msgspec.json.decode(file.read_bytes(), type=_Note)
            except UNDECODABLE as error:
                raise InDoubt(f"{file} cannot be read: {error}") from error
            if note.run == self._note.run:
                continue
            points = self._points(note)
            for point in points:
                yield from self._named(point)
            if not points:
                file.unlink(missing_ok=True)

    def _notes(self) -> list[Path]:
        """Uses `os.listdir`, because `Path.glob` finds nothing in a directory it may not read."""
        notes = self._source.notes
        return sorted(notes / name for name in os.listdir(notes) if name.endswith(NOTE))

    def _points(self, note: _Note) -> list[str]:
        run = RunDirectory(Path(note.run))
        if not any(run.jobs_root.iterdir()):
            raise InDoubt(f"{run.jobs_root} is empty, or not mounted")
        if run.path.exists() and not isinstance(last_event(run.journal_file), RunEnded):
            raise InDoubt(f"run {run.run_id} has not ended")
        home = run.path.parent.parent
        for place in (note.checkpoints.rpartition("/")[0], note.savepoints):
            is_elsewhere = not scheme_of(place) and not Path(place).is_relative_to(home)
            if is_elsewhere and not self._store.names(place):
                raise InDoubt(f"{place} is empty, or not mounted")
        places = SnapshotPlaces(run.run_id, note.checkpoints, note.savepoints)
        return [
            point
            for root in (note.checkpoints, note.savepoints)
            for point in self._store.published(root)
            if places.checkpoint_id_of(point.rpartition("/")[2]) is not None
        ]

    def _named(self, point: str) -> set[str]:
        try:
            return set(_rows_named(self._store.manifest(point)))
        except CorruptSnapshot as damage:
            raise InDoubt(f"what {point} names cannot be read: {damage}") from damage


def _rows_named(manifest: Manifest) -> Iterator[str]:
    operators = (each for subtask in manifest.subtasks for each in subtask.operators)
    for stored in (each for o in operators for each in (o.positions, o.reserved)):
        try:
            positions = NamedPositions.from_json(stored)
        except msgspec.ValidationError:
            continue  # positions of another kind of source, or none
        yield from map(rows_of, positions.names())
