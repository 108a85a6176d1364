"""The share of one subtask in a checkpoint, at any parallelism, and the progress of reading it.

Keyed rows go by key group, operator state as its kind says. All other lists (committables,
counters) go by the old subtask's index modulo the new parallelism. Positions are the exception: a
source gets all of them and assigns the splits itself. Every parallelism here is that of the
operator. The parallelism of the run may differ, and so may that of the run that cut the point.

`RestoreMeter` counts the files and bytes that have been read. The slot reports them to the driver.
The driver ends an attempt whose restore makes no progress; any other restore may take as long as it
needs.

Source: Flink, `StateAssignmentOperation`.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.domain.errors import CorruptSnapshot, DamagedFile
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.events import RestoreProgress
from pipelines.domain.graph import Vertex
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.key_groups import KeyGroupRange, Redistribution, Taken, range_of, taken_by
from pipelines.domain.snapshots import (
    FileHandle,
    Json,
    Manifest,
    OperatorSnapshot,
    StateFormat,
    StateHandle,
)
from pipelines.points.browsing import ReadsFiles, rows_of
from pipelines.points.stored_output import prepared_of, quarantined_of
from pipelines.protocol.commit import Prepared
from pipelines.runtime.subtask.snapshots.in_flight import InFlightShare, KeyTime
from pipelines.state.backend import StoredDatabase
from pipelines.state.operator_states import elements_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOperator:
    """The restored parts of one operator. You can consume `states` only once. Positions are those
    of all old subtasks."""

    states: tuple["RestoredState", ...] = ()
    operator_states: tuple[tuple[str, Iterable[pa.RecordBatch]], ...] = ()
    positions: tuple[Json, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    quarantined: tuple[Prepared, ...] = ()
    replayed: tuple[Json, ...] = ()  # of all old subtasks
    counters: tuple[tuple[str, int], ...] = ()
    is_known: bool = False  # True if the point knows the operator
    watermark_ms: int | None = None  # the least of all old subtasks
    assigned_ms: int | None = None  # likewise, for an operator that assigns event time
    key_times_ms: tuple[KeyTime, ...] = ()  # of all old subtasks


@dataclass(frozen=True, slots=True)
class RestoredState:
    """One state of one old subtask: its rows, and the database that stores them, if any."""

    name: str
    rows: Iterable[pa.RecordBatch]
    database: StoredDatabase | None = None
    rows_expected: int = 0


NOTHING = RestoredOperator()


class RestorePoint:
    """One verified checkpoint; each subtask takes its share of it.

    `dropped_states` are not restored: the operator no longer has them. With `forgets_state` (at
    most once, after a failure) no state is restored, and sources begin behind the records that they
    had reserved. The output that sinks had prepared is still committed, once.
    """

    def __init__(
        self,
        store: ReadsFiles,
        location: str,
        manifest: Manifest,
        dropped_states: Collection[tuple[Uid, str]] = (),
        *,
        run_id: RunId | None = None,
        forgets_state: bool = False,
    ) -> None:
        """`run_id`: the run that restores. It may refer again to files of its own points."""
        self._store = store
        self._location = location
        self._manifest = manifest
        self._dropped = frozenset(dropped_states)
        self._forgets_state = forgets_state
        self._is_own = manifest.run_id == run_id

    def share_of(
        self, uid: Uid, subtask: int, parallelism: int, key_groups: KeyGroupRange
    ) -> RestoredOperator:
        old = self._snapshots_of(uid)
        mine = [snapshot for index, snapshot in old if index % parallelism == subtask]
        forgets = self._forgets_state
        return RestoredOperator(
            states=() if forgets else tuple(self._states(uid, old, key_groups)),
            operator_states=(
                () if forgets else tuple(self._operator_rows(uid, old, subtask, parallelism))
            ),
            positions=tuple(self._positions(old)),
            prepared=prepared_of(mine, lambda file: self._store.read_batches(self._location, file)),
            quarantined=quarantined_of(mine),
            replayed=tuple(s.replayed for _, s in old if s.replayed is not None),
            counters=tuple(_sum_counters(mine).items()),
            is_known=bool(old),
            watermark_ms=_least([snapshot.watermark_ms for _, snapshot in old]),
            assigned_ms=_least([snapshot.assigned_ms for _, snapshot in old]),
            key_times_ms=tuple(self._key_times(uid, old)),
        )

    def files_of(
        self, uid: Uid, subtask: int, parallelism: int, key_groups: KeyGroupRange
    ) -> Iterator[FileHandle]:
        """Yields the files of the state in `share_of`."""
        if self._forgets_state:
            return
        old = self._snapshots_of(uid)
        for state in self._wanted(uid, old, key_groups):
            yield from state.files
        for _, state, _ in self._taken(uid, old, subtask, parallelism):
            yield from state.files

    def _key_times(self, uid: Uid, old: list[tuple[int, OperatorSnapshot]]) -> Iterator[KeyTime]:
        parallelism, maximum = self._manifest.parallelism_of(uid), self._manifest.max_parallelism
        for index, snapshot in old:
            groups = range_of(index, parallelism, maximum)
            known = snapshot.watermark_ms
            whole = (groups.first, groups.last, MIN_WATERMARK_MS if known is None else known)
            yield from snapshot.key_times_ms or [whole]

    def in_flight_into(
        self, vertex: Vertex, subtask: int, parallelism: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields port and rows of the records that were in flight to `vertex`, in order."""
        share = InFlightShare(self._manifest, vertex, subtask, parallelism)
        return share.read(lambda file: self._store.read_batches(self._location, file))

    def _positions(self, old: list[tuple[int, OperatorSnapshot]]) -> Iterator[Json]:
        for _, snapshot in old:
            place = snapshot.reserved if self._forgets_state else snapshot.positions
            if place is not None:
                yield place

    def _snapshots_of(self, uid: Uid) -> list[tuple[int, OperatorSnapshot]]:
        """Returns the snapshots in the order of the subtasks; they acknowledged in any order."""
        found = [
            (subtask.subtask, operator)
            for subtask in self._manifest.subtasks
            for operator in subtask.operators
            if operator.uid == uid
        ]
        return sorted(found, key=lambda one: one[0])

    def _states(
        self, uid: Uid, old: list[tuple[int, OperatorSnapshot]], key_groups: KeyGroupRange
    ) -> Iterator[RestoredState]:
        for state in self._wanted(uid, old, key_groups):
            is_database = state.format is StateFormat.ROCKSDB
            database = StoredDatabase(state, self._fetch, self._is_own)
            yield RestoredState(
                state.state,
                rows_of(self._store, self._location, state, key_groups),
                database if is_database else None,
                _rows_expected(state, key_groups),
            )

    def _wanted(
        self, uid: Uid, old: list[tuple[int, OperatorSnapshot]], key_groups: KeyGroupRange
    ) -> Iterator[StateHandle]:
        """Yields keyed state that may contain rows of `key_groups`."""
        for _, snapshot in old:
            for state in snapshot.states:
                is_wanted = state.redistribution is None and (uid, state.state) not in self._dropped
                if is_wanted and state.key_group_range.overlaps(key_groups):
                    yield state

    def _fetch(self, file: FileHandle, target: Path, *, may_share: bool = False) -> None:
        self._store.fetch(self._location, file, target, may_share=may_share)

    def _operator_rows(
        self, uid: Uid, old: list[tuple[int, OperatorSnapshot]], subtask: int, parallelism: int
    ) -> Iterator[tuple[str, Iterable[pa.RecordBatch]]]:
        for name, state, taken in self._taken(uid, old, subtask, parallelism):
            yield name, elements_taken(rows_of(self._store, self._location, state), taken)

    def _taken(
        self, uid: Uid, old: list[tuple[int, OperatorSnapshot]], subtask: int, parallelism: int
    ) -> Iterator[tuple[str, StateHandle, Taken]]:
        """Yields operator state: its name, and this subtask's share of each old subtask's state."""
        for (name, kind), handles in self._operator_states(uid, old).items():
            indices = range(self._manifest.parallelism_of(uid))
            held = [handles[index].rows if index in handles else 0 for index in indices]
            for taken in taken_by(subtask, parallelism, kind, held):
                if taken.old_subtask in handles:
                    yield name, handles[taken.old_subtask], taken

    def _operator_states(
        self, uid: Uid, old: list[tuple[int, OperatorSnapshot]]
    ) -> dict[tuple[str, Redistribution], dict[int, StateHandle]]:
        """Returns, for each state that belongs to no key, the handles by old subtask."""
        found: dict[tuple[str, Redistribution], dict[int, StateHandle]] = {}
        for index, snapshot in old:
            for state in snapshot.states:
                kind = state.redistribution
                if kind is not None and (uid, state.state) not in self._dropped:
                    found.setdefault((state.state, kind), {})[index] = state
        return found


def _least(times_ms: list[int | None]) -> int | None:
    """Returns the least time, or None if one of them is not known."""
    known = [time_ms for time_ms in times_ms if time_ms is not None]
    return min(known) if known and len(known) == len(times_ms) else None


def _rows_expected(state: StateHandle, key_groups: KeyGroupRange) -> int:
    """Returns the number of rows of `key_groups`, if all groups have equally many."""
    own = state.key_group_range
    first, last = max(own.first, key_groups.first), min(own.last, key_groups.last)
    share = (last - first + 1) / (own.last - own.first + 1)
    return round(share * state.rows)


def _sum_counters(snapshots: list[OperatorSnapshot]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for snapshot in snapshots:
        for name, value in snapshot.counters.items():
            totals[name] = totals.get(name, 0) + value
    return totals


class RestoreMeter:
    """Counts restored files and bytes. Each expected file counts once, however often it is read.

    An unexpected file (records in flight, the segment of a sink) shows as progress, but is not part
    of the total. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lengths: dict[str, int] = {}
        self._unread: dict[str, int] = {}  # bytes of each file that is not done
        self._steps = 0
        self._told_steps = 0

    def expect(self, files: Iterable[FileHandle]) -> None:
        with self._lock:
            for file in files:
                self._lengths[file.name] = self._unread[file.name] = file.length
            self._steps += 1

    def step(self) -> None:
        """Counts a step that reads no file: an operator or a sink is open."""
        with self._lock:
            self._steps += 1

    def on_read(self, file: FileHandle, length: int) -> None:
        """Counts at most `length` more bytes of the file; a batch may be larger than its part."""
        with self._lock:
            if file.name in self._unread:
                self._unread[file.name] = max(0, self._unread[file.name] - length)
            self._steps += 1

    def on_done(self, file: FileHandle) -> None:
        with self._lock:
            self._unread.pop(file.name, None)
            self._steps += 1

    def progress(self) -> RestoreProgress:
        with self._lock:
            total_bytes, total_files = sum(self._lengths.values()), len(self._lengths)
            return RestoreProgress(
                read_bytes=total_bytes - sum(self._unread.values()),
                total_bytes=total_bytes,
                read_files=total_files - len(self._unread),
                total_files=total_files,
            )

    def has_news(self) -> bool:
        """Returns True if the meter moved since the last call."""
        with self._lock:
            moved, self._told_steps = self._steps != self._told_steps, self._steps
            return moved


class MeteredFiles:
    """Implements `ReadsFiles`: counts the bytes read from a store, and names the damaged file in an
    error."""

    def __init__(self, files: ReadsFiles, meter: RestoreMeter) -> None:
        self._files = files
        self._meter = meter

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        with _naming(file):
            for batch in self._files.read_batches(location, file):
                yield batch
                self._meter.on_read(file, batch.nbytes)
        self._meter.on_done(file)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        with _naming(file):
            self._files.fetch(location, file, target, may_share=may_share)
        self._meter.on_done(file)


@contextmanager
def _naming(file: FileHandle) -> Iterator[None]:
    try:
        yield
    except CorruptSnapshot as error:
        raise DamagedFile(str(error), file.name) from error
