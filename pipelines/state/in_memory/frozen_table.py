"""A table as it was at the cut, handed out segment by segment as Arrow batches.

Which rows of a table have changed since the last `take`.

One flag per row number. Used by the subtask's thread only; any thread may use what `take` returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.state.arrow_types import to_arrow
from pipelines.state.backend import KEY_GROUP_COLUMN, TableDescriptor
from pipelines.state.in_memory.columns import FrozenColumn, first_row, segment_count, segment_of
from pipelines.state.in_memory.key_columns import FrozenArrays

ROW_COLUMN = "__row"
"""In an increment: the row's number in the table."""

DELETED_COLUMN = "__deleted"
"""In an increment: the row is deleted and its other columns are null."""

Mask = npt.NDArray[np.bool_]


def snapshot_schema(descriptor: TableDescriptor) -> pa.Schema:
    return pa.schema([*descriptor.key, *descriptor.value, (KEY_GROUP_COLUMN, pa.uint16())])


def increment_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a snapshot, and those that identify rows across several files."""
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
        """The live rows, or those of them that `only` flags by row number.

        Dropping the iterator ends the saving of pre-images for it.
        """
        for segment, live, wanted in self._segments(only):
            kept = live if wanted is None else live & wanted
            arrays = self._taken(segment, kept)
            if len(arrays[0]):
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def increment(self, only: Mask | None) -> Iterator[pa.RecordBatch]:
        """The rows that `only` flags, with deleted ones as tombstones; None: all live rows."""
        schema = increment_schema(self.schema)
        for segment, live, wanted in self._segments(only):
            kept = live if wanted is None else live & wanted
            gone = np.flatnonzero(wanted & ~live) if wanted is not None else _NO_ROWS
            tombstones = [pa.nulls(len(gone), column_type) for column_type in self.schema.types]
            taken = zip(self._taken(segment, kept), tombstones, strict=True)
            arrays = [pa.concat_arrays(pair) if len(gone) else pair[0] for pair in taken]
            rows = first_row(segment) + np.concatenate([np.flatnonzero(kept), gone])
            is_deleted = np.arange(len(rows)) >= len(rows) - len(gone)
            arrays += [pa.array(rows, pa.int64()), pa.array(is_deleted)]
            if len(rows):
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _segments(self, only: Mask | None) -> Iterator[tuple[int, Mask, Mask | None]]:
        """Number, live rows and wanted rows of each segment that has wanted rows."""
        for segment in range(segment_count(self.length)):
            wanted = None if only is None else segment_of(only, segment, self.length)
            if wanted is None or wanted.any():
                live = self.live.take(segment).astype(np.bool_, copy=False)
                yield segment, live, wanted

    def _taken(self, segment: int, kept: Mask) -> list[pa.Array]:
        picked = slice(None) if kept.all() else np.flatnonzero(kept)
        arrays = [column.take(segment, picked) for column in (*self.keys, *self.values)]
        arrays.append(to_arrow(self.groups.take(segment)[picked], pa.uint16()))
        return arrays


_NO_ROWS = np.empty(0, np.int64)


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
        """The flags so far; clears them all."""
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
    """The rows that are in any of the masks, which may differ in length."""
    merged = np.zeros(max((len(mask) for mask in masks), default=0), np.bool_)
    for mask in masks:
        merged[: len(mask)] |= mask
    return merged
