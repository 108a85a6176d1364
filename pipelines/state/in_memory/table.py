"""One keyed table of the hashmap backend: keys with their rows, and a column per value field.

`key_rows` decides which row a key has; the columns freeze themselves (`columns`); the backend makes
snapshots and restores.

Source: Flink's `CopyOnWriteStateMap`, for the idea that a cut costs nothing until a write.
"""

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import FrozenState, Rows, ScanPosition, TableDescriptor
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory.frozen_table import FrozenTable, snapshot_schema
from pipelines.state.in_memory.key_rows import HashKeys, KeyRows
from pipelines.state.in_memory.value_columns import TextValues, ValueColumn, value_column


class HashMapTable:
    """Guarantee: one row per distinct key, and a cut that later calls do not change.

    Needs all calls from one thread, and only keys of its own key groups.
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

    def try_load(self, keys: pa.RecordBatch, values: Sequence[pa.Array]) -> bool:
        """Take rows of a snapshot if all keys are new. False: nothing was taken."""
        rows = self._keys.try_load(keys)
        if rows is None:
            return False
        self._on_loaded(rows)
        for column, array in zip(self._values.values(), values, strict=True):
            column.reserve(self.length)
            column.write_arrow(rows, array)
        return True

    def expect(self, rows: int, text_bytes: int) -> None:
        """Make room for `rows` more rows, so that a restore does not grow step by step."""
        self._keys.expect(rows)
        texts = [c for c in self._values.values() if isinstance(c, TextValues)]
        for column in self._values.values():
            column.reserve(self.length + rows)
        for text in texts if len(texts) == 1 else ():
            text.expect(rows, text_bytes)

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
        """The table as it is now, to be read once; takes time independent of its length."""
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
        """All row numbers are below it."""
        return self._keys.length

    def reset(self, rows: Rows) -> None:
        """Set the values of rows back to their defaults."""
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
