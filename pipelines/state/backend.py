"""The contract of a state backend: tables, batch lists, and their full and incremental cuts.

An operator declares its states by descriptor (Arrow schemas, never Python objects) and works on
whole batches of keys. A cut freezes every state at once, in constant time and without a copy;
another thread reads the frozen rows while the operator continues to write. Nothing is ever
unpickled. For a checkpoint each state writes everything or an increment, and gets back the handles
of its files. `protocol.retention` decides which increment builds on which; the thread that cuts and
the thread that uploads both consult it. The runtime decides where files go.

Source: Flink's `KeyedStateBackend` and `AsyncSnapshotStrategy`; the vectorised shape is ours.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.ids import BUILD_ON_NOTHING, CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle, StatePart
from pipelines.protocol.retention import CompletedIncrements
from pipelines.state.hashing import Hashes


class IncrementFiles(Protocol):
    """Writes the files of one state's increment, under unique names made from `label`."""

    def write_rows(
        self, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> FileHandle:
        """Writes a file of rows that later checkpoints may refer to."""
        ...

    def copy(self, label: str, path: Path, *, is_shared: bool) -> FileHandle:
        """Stores a file of the local disk unchanged."""
        ...


@dataclass(frozen=True, slots=True)
class StoredIncrement:
    format: StateFormat
    file: FileHandle
    parts: tuple[StatePart, ...]


class Increment(Protocol):
    """The part of a checkpoint that one state has to write. Use it once, from any thread."""

    def write(self, files: IncrementFiles) -> StoredIncrement: ...


class FetchFile(Protocol):
    """Fetches one file of a snapshot to the local disk, verified; see `CheckpointStore.fetch`."""

    def __call__(self, file: FileHandle, target: Path, *, may_share: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """One state of a snapshot whose files are a database."""

    handle: StateHandle
    fetch: FetchFile
    is_own: bool  # belongs to this run, so later checkpoints may refer to its files


T = TypeVar("T")


class IncrementLog(Generic[T]):
    def __init__(self, restored: T | None = None) -> None:
        self._increments = CompletedIncrements(restored)
        self._lock = threading.Lock()

    def base(self, confirmed_id: CheckpointId) -> T | None:
        """Returns the base of the next increment. Checkpoints up to `confirmed_id` are complete."""
        with self._lock:
            if confirmed_id == BUILD_ON_NOTHING:
                self._increments.on_damaged()
            self._increments.on_completed(confirmed_id)
            return self._increments.base

    def on_written(self, checkpoint_id: CheckpointId, increment: T | None) -> None:
        with self._lock:
            self._increments.on_written(checkpoint_id, increment)

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_completed(checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_aborted(checkpoint_id)


KEY_GROUP_COLUMN = "__key_group"
"""Added to every snapshot batch: uint16, the key group of the row."""

NAMESPACE_COLUMN = "__namespace"
"""Added to the snapshot batches of a batch list: int64."""

Rows = npt.NDArray[np.int64]
"""Row numbers of a table, one per key of the batch that was looked up."""

NO_ROW = -1
"""The row number of a key that is not in the table."""

Default = int | float | bool | str | bytes | None

ScanPosition = int | bytes
"""The position where a scan continues; only the table that returned it can read it."""


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    """One row per key. Values are ints, floats, booleans, timestamps, dates, strings or binary.

    `defaults` gives the initial value of each value column. A column whose default is None may hold
    nulls, the others may not. A table may have no value column at all. `key_group_by` names the key
    columns that decide the key group (the stream's key); the others, such as a window or the
    position in a list, do not.
    """

    name: str
    key: pa.Schema
    value: pa.Schema
    defaults: Mapping[str, Default]
    key_group_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchListDescriptor:
    """An append-only list of rows per namespace (such as a window), in order of arrival.

    `defaults` gives the value of a column in rows that were stored before it was declared; a column
    without a default must be in the snapshot. `stays_in_memory` means that the operator also reads
    the rows in place.
    """

    name: str
    schema: pa.Schema
    key_group_by: tuple[str, ...]
    defaults: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    stays_in_memory: bool = False


class Table(Protocol):
    """Keyed rows, vectorised.

    A row number stays valid until its row is deleted or the backend settles, which it does between
    two calls of the operator.
    """

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        """Returns the row of each key, in order. Unseen keys get a fresh row; keys may repeat."""
        ...

    def enter(
        self, keys: pa.RecordBatch, group_hashes: Hashes | None = None
    ) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Like `rows_for`, and also flags each unseen key; if it repeats, only its first position.

        Pass the `group_hashes` of the keys if you already have them.
        """
        ...

    def group_hashes(self, rows: pa.RecordBatch) -> Hashes:
        """Returns the hashes that assign `rows` to key groups.

        The rows need the columns by which the stream is keyed.
        """
        ...

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Returns the row of each key, or NO_ROW for none; unlike `rows_for`, it adds nothing."""
        ...

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        """Copies one value column at `rows`; only for fixed-width columns without nulls."""
        ...

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        """Returns any value column at `rows`, in its declared type."""
        ...

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        """Like `write`, for any value column; `values` must have its type."""
        ...

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        """Overwrites values. If a row repeats, its last value stays. Frozen cuts do not change."""
        ...

    def delete(self, rows: Rows) -> None:
        """Deletes these keys; their row numbers may be reused. `rows` must be distinct."""
        ...

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        """Rows whose integer or timestamp key column is <= `bound` (for windows that are due)."""
        ...

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        """Returns at most `limit` rows after `after`, and the position to continue from.

        Pass None to begin; a returned None means that the scan has ended. Over repeated rounds a
        scan meets every row that stays, even if others change meanwhile. `limit` bounds the work of
        one call.
        """
        ...

    def keys(self, rows: Rows) -> pa.RecordBatch:
        """The key columns at `rows`."""
        ...

    def __len__(self) -> int:
        """The number of live keys."""
        ...


class BatchList(Protocol):
    def append(self, namespace: int, batch: pa.RecordBatch) -> None: ...

    def namespaces_at_most(self, bound: int) -> list[int]:
        """Namespaces <= `bound` that hold rows, ascending."""
        ...

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        """Remove and return a namespace's batches, in order of arrival."""
        ...

    def batches(self, namespace: int) -> Sequence[pa.RecordBatch]:
        """Returns a namespace's rows in order of arrival; only for a list that stays in memory.

        The next call of `append` or `pop` may change the returned sequence.
        """
        ...

    def __len__(self) -> int:
        """The number of rows in all namespaces."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenState:
    """One state at the cut. `batches` may be consumed once, from any thread.

    Rows carry the state's own columns (for a batch list also `__namespace`, int64) and
    `__key_group`. Call `release` at the end from any thread, even if no checkpoint has stored the
    state, so that the backend can drop its copy. It raises what writing to the local disk raises.
    """

    name: str
    kind: str  # "table" or "batches", or a `Redistribution`
    schema: pa.Schema
    rows: int
    batches: Iterator[pa.RecordBatch]  # empty if there is an increment instead
    _: KW_ONLY
    increment: Increment | None = None
    release: Callable[[], None] | None = None


class StateBackend(Protocol):
    """All states of one operator of one subtask."""

    def table(self, descriptor: TableDescriptor) -> Table:
        """Declares or gets a table. Raises Rejected if the name has another descriptor."""
        ...

    def batch_list(self, descriptor: BatchListDescriptor) -> BatchList: ...

    def cut(self) -> list[FrozenState]:
        """Freeze all states as they are now. Constant time: no row is copied here.

        A second cut may come before the first was consumed; both stay correct.
        """
        ...

    def cut_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> list[FrozenState]:
        """Like `cut`, but for a checkpoint.

        A backend that can do so returns only the changes since an earlier, complete checkpoint. All
        checkpoints up to `confirmed_id` are complete, even if the backend was not notified.
        """
        ...

    def cut_native(self) -> list[FrozenState]:
        """Like `cut`, for a native savepoint: returns all the backend's own files, none shared."""
        ...

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None: ...

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None: ...

    def adopt(self, database: StoredDatabase) -> bool:
        """Takes over a snapshot's database unchanged, as the content of a declared, empty state.

        Returns False if the database does not fit; the caller then restores its rows one by one.
        """
        ...

    def restore(
        self, state: str, batches: Iterable[pa.RecordBatch], rows_expected: int = 0
    ) -> None:
        """Load rows of a snapshot into a declared state, keeping only own key groups.

        `rows_expected` is a hint, so that memory need not grow step by step.

        An added column gets its default, and a narrower type is cast to a wider one
        (`state.evolution`).

        Raises:
            Rejected: `state` is not declared, or a column is missing, no longer exists or has
                another type; the message names state and column.
        """
        ...

    def settle(self) -> None:
        """Called between two calls of the operator; may move rows, so row numbers become void."""
        ...

    def close(self) -> None:
        """Release files; the states must not be used any more. May be called twice."""
        ...

    def statistics(self) -> "BackendStatistics": ...


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    rows: int
    state_bytes: int


class BackendFactory(Protocol):
    def __call__(self, key_groups: KeyGroupRange, max_parallelism: int) -> StateBackend: ...
