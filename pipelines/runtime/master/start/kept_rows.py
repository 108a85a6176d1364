"""Deletes rows of DataFrames that were kept for a start, once no point of any run names them.

A fresh start asks Spark for rows of its own. Earlier rows stay as long as a point that reads them
may be restored. Runs know nothing of each other, so each leaves a note next to the rows that says
where its points are. In doubt everything stays: a run that has not ended may name any rows, and a
storage that does not answer, or is not mounted, may hold points.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pipelines.bus.journal import last_event
from pipelines.connectors.files.data_frame import DataFrameRows, rows_of
from pipelines.connectors.split_progress import NamedPositions
from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected, Retryable
from pipelines.domain.events import RunEnded
from pipelines.domain.run import RunDirectory, SnapshotPlaces, scheme_of
from pipelines.domain.snapshots import Manifest
from pipelines.storage.store import CheckpointStore

NOTE = ".json"
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger(__name__)


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The note of one run that reads rows of the directory."""

    run: str  # its directory
    checkpoints: str
    savepoints: str


class InDoubt(Exception):
    """Some rows may be needed, and it is not known which. Says why in a clause."""


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
        """Call before anything is read. Warns a run that may not write there that others may delete
        what it reads. Raises Retryable if the place does not answer.
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
        """Call in a run that has no point yet, and has rows of its own.

        Raises what `check_held` raises if another driver has the run by now: that one may have kept
        rows meanwhile, which look like earlier ones from here.
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
        """`Path.glob` would find none in a directory that it may not read."""
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
