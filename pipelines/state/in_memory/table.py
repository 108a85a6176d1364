"""One keyed table of the hashmap backend: keys with their rows, and a column per value field.

`key_rows` decides which row a key has; the columns freeze themselves (`columns`); the backend makes
snapshots and restores. After a cut the table is handed out as it was, segment by segment, as Arrow
batches. A flag per row tells which rows have changed since the last `take`. Only the subtask's
thread sets it; any thread may use the flags that `take` returns.

Source: Flink's `CopyOnWriteStateMap`, for the idea that a cut costs nothing until a write.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrow_types import to_arrow
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    FrozenState,
    Rows,
    ScanPosition,
    TableDescriptor,
)
from pipelines.state.hashing import Hashes, KeyGroups
from pipelines.state.in_memory.columns import FrozenColumn, first_row, segment_count, segment_of
from pipelines.state.in_memory.key_columns import (
    FrozenArrays,
    ValueColumn,
    value_column,
)
from pipelines.state.in_memory.key_rows import HashKeys, KeyRows

ROW_COLUMN = "__row"
"""In an increment: the row's number in the table."""

DELETED_COLUMN = "__deleted"
"""In an increment: the row is deleted and its other columns are null."""

Mask = npt.NDArray[np.bool_]


def snapshot_schema(descriptor: TableDescriptor) -> pa.Schema:
    return pa.schema([*descriptor.key, *descriptor.value, (KEY_GROUP_COLUMN, pa.uint16())])


def increment_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a snapshot, and those that identify rows across several files."""
    return pa.schema([*schema, (ROW_COLUMN, pa.int64()), (DELETED_COLUMN, pa.bool_())])


@dataclass(frozen=True, slots=True)
class FrozenTable:
    schema: pa.Schema
    length: int
    live: FrozenColumn
    keys: list[FrozenArrays]
    values: list[FrozenArrays]
    groups: FrozenColumn

    def batches(self, only: Mask | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the live rows, or only those that `only` flags by row number.

        Once you drop the iterator, the table saves no more pre-images for it.
        """
        for segment, live, wanted in self._segments(only):
            kept = live if wanted is None else live & wanted
            arrays = self._taken(segment, kept)
            yield from pa.Table.from_arrays(arrays, schema=self.schema).to_batches()

    def increment(
        self, only: Mask | None = None, deleted: Mask | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the live rows that `only` flags (None means all), and tombstones.

        There is a tombstone for each row that `deleted` flags and that is not live. `only` must
        flag all rows that `deleted` flags.
        """
        schema = increment_schema(self.schema)
        for segment, live, wanted in self._segments(only):
            kept = live if wanted is None else live & wanted
            gone = _NO_ROWS
            if deleted is not None:
                gone = np.flatnonzero(segment_of(deleted, segment, self.length) & ~live)
            arrays = self._taken(segment, kept)
            if len(gone):
                arrays = [_with_nulls(array, len(gone)) for array in arrays]
            rows = first_row(segment) + np.concatenate([np.flatnonzero(kept), gone])
            is_deleted = np.arange(len(rows)) >= len(rows) - len(gone)
            arrays += [pa.array(rows, pa.int64()), pa.array(is_deleted)]
            yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()

    def _segments(self, only: Mask | None) -> Iterator[tuple[int, Mask, Mask | None]]:
        """Yields number, live rows and wanted rows of each segment that has wanted rows."""
        for segment in range(segment_count(self.length)):
            wanted = None if only is None else segment_of(only, segment, self.length)
            if wanted is None or wanted.any():
                live = self.live.take(segment).astype(np.bool_, copy=False)
                yield segment, live, wanted

    def _taken(self, segment: int, kept: Mask) -> list[pa.Array | pa.ChunkedArray]:
        """Takes the columns of a segment. Large values come in several arrays and batches."""
        picked = slice(None) if kept.all() else np.flatnonzero(kept)
        arrays = [column.take(segment, picked) for column in (*self.keys, *self.values)]
        arrays.append(to_arrow(self.groups.take(segment)[picked], pa.uint16()))
        return arrays


_NO_ROWS = np.empty(0, np.int64)


def _with_nulls(array: pa.Array | pa.ChunkedArray, count: int) -> pa.Array | pa.ChunkedArray:
    nulls = pa.nulls(count, array.type)
    if isinstance(array, pa.Array):
        return pa.concat_arrays([array, nulls])
    *others, last = array.chunks
    return pa.chunked_array([*others, pa.concat_arrays([last, nulls])])


RowNumbers = npt.NDArray[np.int64]

INITIAL_ROWS = 1 << 10


class DirtyRows:
    def __init__(self) -> None:
        self._flags: Mask = np.zeros(INITIAL_ROWS, np.bool_)

    def mark(self, rows: RowNumbers) -> None:
        self._reserve(rows)
        self._flags[rows] = True

    def clear(self, rows: RowNumbers) -> None:
        self._reserve(rows)
        self._flags[rows] = False

    def count(self) -> int:
        return int(np.count_nonzero(self._flags))

    def take(self) -> Mask:
        """Returns the flags so far and clears them all."""
        taken = self._flags
        self._flags = np.zeros(len(taken), np.bool_)
        return taken

    def _reserve(self, rows: RowNumbers) -> None:
        needed = int(rows.max(initial=-1)) + 1
        if needed > len(self._flags):
            larger = np.zeros(max(needed, 2 * len(self._flags)), np.bool_)
            larger[: len(self._flags)] = self._flags
            self._flags = larger


def union(masks: list[Mask]) -> Mask:
    """Flags the rows that any of the masks flags; the masks may differ in length."""
    merged = np.zeros(max((len(mask) for mask in masks), default=0), np.bool_)
    for mask in masks:
        merged[: len(mask)] |= mask
    return merged


class HashMapTable:
    """Guarantee: one row per distinct key, and a cut that later calls do not change.

    All calls must come from one thread, and all keys must belong to its own key groups.
    """

    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
    ) -> None:
        lock = threading.Lock()
        self._descriptor = descriptor
        self._keys = KeyRows(
            descriptor, own_groups, max_parallelism, hash_keys, self._on_added, lock
        )
        self._values = {
            f.name: value_column(f, descriptor.defaults[f.name], lock) for f in descriptor.value
        }

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def descriptor(self) -> TableDescriptor:
        return self._descriptor

    @property
    def value_columns(self) -> dict[str, ValueColumn]:
        return self._values

    @property
    def state_bytes(self) -> int:
        values = self._values.values()
        width = self._keys.row_bytes + sum(column.row_bytes for column in values)
        texts = self._keys.heap_bytes + sum(column.heap_bytes for column in values)
        return len(self) * width + texts

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        return self._keys.rows_for(keys)

    def enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        return self._keys.enter(keys, group_hashes)

    def group_hashes(self, rows: pa.RecordBatch) -> Hashes:
        return self._keys.group_hashes(rows)

    def try_load(self, keys: pa.RecordBatch, values: Sequence[pa.Array]) -> bool:
        """Loads rows of a snapshot if all keys are new. Returns False if it loaded nothing."""
        rows = self._keys.try_load(keys)
        if rows is None:
            return False
        self._on_loaded(rows)
        for column, array in zip(self._values.values(), values, strict=True):
            column.reserve(self.length)
            column.write_arrow(rows, array)
        return True

    def expect(self, rows: int) -> None:
        """Makes room for `rows` more rows, so that memory does not grow step by step."""
        self._keys.expect(rows)
        for column in self._values.values():
            column.reserve(self.length + rows)

    def find(self, keys: pa.RecordBatch) -> Rows:
        return self._keys.find(keys)

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        return self._values[column].read(rows)

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._values[column].write(rows, values)

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        return self._values[column].read_arrow(rows)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        written = self._values[column]
        written.tidy(self._keys.live_mask)
        written.write_arrow(rows, values)

    def delete(self, rows: Rows) -> None:
        self._keys.delete(rows)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        return self._keys.select_at_most(key_column, bound)

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        first = after if isinstance(after, int) else 0
        end = first + limit
        rows = first + np.flatnonzero(self._keys.live_mask()[first:end])
        return rows, end if end < self.length else None

    def keys(self, rows: Rows) -> pa.RecordBatch:
        return self._keys.keys(rows)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        return self._keys.key_groups_of(keys)

    def freeze(self) -> FrozenState:
        frozen = self.freeze_rows()
        return FrozenState(
            self._descriptor.name, "table", frozen.schema, len(self), frozen.batches()
        )

    def freeze_rows(self) -> FrozenTable:
        """Freezes the table as it is now, to be read once, in a time independent of its length."""
        length = self.length
        return FrozenTable(
            schema=snapshot_schema(self._descriptor),
            length=length,
            live=self._keys.live.freeze(length),
            keys=self._keys.freeze(length),
            values=[column.freeze(length) for column in self._values.values()],
            groups=self._keys.groups.freeze(length),
        )

    @property
    def length(self) -> int:
        """All row numbers are below this."""
        return self._keys.length

    def reset(self, rows: Rows) -> None:
        """Sets the values of rows back to their defaults."""
        for column in self._values.values():
            column.reset(rows)

    def live_rows(self) -> Rows:
        return np.flatnonzero(self._keys.live_mask())

    def _on_loaded(self, rows: Rows) -> None:
        """Called for rows of a snapshot, which get no defaults."""

    def _on_added(self, rows: Rows) -> None:
        """Called for rows of new keys."""
        for column in self._values.values():
            column.reserve(self.length)
        self.reset(rows)
