"""A state backend of dictionaries and copies: slow, obvious, and held to the same contract."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    NO_ROW,
    BackendStatistics,
    BatchListDescriptor,
    FrozenState,
    Rows,
    ScanPosition,
    TableDescriptor,
)
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.increments import StoredDatabase

Key = tuple[object, ...]


class DictTable:
    def __init__(self, descriptor: TableDescriptor, max_parallelism: int) -> None:
        self.descriptor = descriptor
        self._max_parallelism = max_parallelism
        self._rows: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._values: dict[int, dict[str, object]] = {}
        self._next = 0

    @property
    def schema(self) -> pa.Schema:
        added = (KEY_GROUP_COLUMN, pa.uint16())
        return pa.schema([*self.descriptor.key, *self.descriptor.value, added])

    def __len__(self) -> int:
        return len(self._rows)

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        return np.array([self._row(key) for key in tuples(keys)], np.int64)

    def find(self, keys: pa.RecordBatch) -> Rows:
        return np.array([self._rows.get(key, NO_ROW) for key in tuples(keys)], np.int64)

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        values = [self._values[row][column] for row in rows.tolist()]
        return pa.array(values, self.descriptor.value.field(column).type)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
            self._values[row][column] = value

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        array = self.read_arrow(column, rows)
        if pa.types.is_temporal(array.type):
            array = array.view(pa.int64())
        return np.asarray(array.to_numpy(zero_copy_only=False))

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            self._values[row][column] = value

    def delete(self, rows: Rows) -> None:
        for row in rows.tolist():
            del self._rows[self._keys.pop(row)]
            del self._values[row]

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        rows = np.array(list(self._keys), np.int64)
        column = self.keys(rows).column(key_column)
        if pa.types.is_temporal(column.type):
            column = column.view(pa.int64())
        due = [value is not None and value <= bound for value in column.to_pylist()]
        return rows[np.array(due, np.bool_)]

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        first = after if isinstance(after, int) else 0
        rows = sorted(row for row in self._keys if row >= first)
        found, rest = rows[:limit], rows[limit:]
        return np.array(found, np.int64), rest[0] if rest else None

    def keys(self, rows: Rows) -> pa.RecordBatch:
        return batch_of([self._keys[row] for row in rows.tolist()], self.descriptor.key)

    def freeze(self) -> FrozenState:
        rows = np.array(list(self._keys), np.int64)
        keys = self.keys(rows)
        values = [self.read_arrow(field.name, rows) for field in self.descriptor.value]
        groups = groups_of(keys, self.descriptor.key_group_by, self._max_parallelism)
        batch = pa.RecordBatch.from_arrays([*keys.columns, *values, groups], schema=self.schema)
        return FrozenState(self.descriptor.name, "table", self.schema, len(self), iter([batch]))

    def load(self, batch: pa.RecordBatch) -> None:
        rows = self.rows_for(batch.select(self.descriptor.key.names))
        for name in self.descriptor.value.names:
            self.write_arrow(name, rows, batch.column(name))

    def _row(self, key: Key) -> int:
        if key not in self._rows:
            self._rows[key] = self._next
            self._keys[self._next] = key
            self._values[self._next] = dict(self.descriptor.defaults)
            self._next += 1
        return self._rows[key]


class DictBatchList:
    def __init__(self, descriptor: BatchListDescriptor, max_parallelism: int) -> None:
        self.descriptor = descriptor
        self._max_parallelism = max_parallelism
        self._batches: dict[int, list[pa.RecordBatch]] = {}

    @property
    def schema(self) -> pa.Schema:
        added = [(NAMESPACE_COLUMN, pa.int64()), (KEY_GROUP_COLUMN, pa.uint16())]
        return pa.schema([*self.descriptor.schema, *added])

    def __len__(self) -> int:
        return sum(batch.num_rows for batches in self._batches.values() for batch in batches)

    def append(self, namespace: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.setdefault(namespace, []).append(batch)

    def namespaces_at_most(self, bound: int) -> list[int]:
        return sorted(namespace for namespace in self._batches if namespace <= bound)

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        return self._batches.pop(namespace, [])

    def freeze(self) -> FrozenState:
        batches = [
            pa.RecordBatch.from_arrays(
                [
                    *batch.columns,
                    pa.array([namespace] * batch.num_rows, pa.int64()),
                    groups_of(batch, self.descriptor.key_group_by, self._max_parallelism),
                ],
                schema=self.schema,
            )
            for namespace, batches in self._batches.items()
            for batch in batches
        ]
        name = self.descriptor.name
        return FrozenState(name, "batches", self.schema, len(self), iter(batches))

    def load(self, batch: pa.RecordBatch) -> None:
        namespaces = batch.column(NAMESPACE_COLUMN).to_pylist()
        for row, namespace in enumerate(namespaces):
            self.append(namespace, batch.slice(row, 1).select(self.descriptor.schema.names))


class DictBackend:
    def __init__(self, groups: KeyGroupRange, max_parallelism: int) -> None:
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._states: dict[str, DictTable | DictBatchList] = {}

    def table(self, descriptor: TableDescriptor) -> DictTable:
        state = self._states.setdefault(
            descriptor.name, DictTable(descriptor, self._max_parallelism)
        )
        if not isinstance(state, DictTable) or state.descriptor != descriptor:
            raise Rejected(f"The state {descriptor.name!r} is declared twice, and differently.")
        return state

    def batch_list(self, descriptor: BatchListDescriptor) -> DictBatchList:
        state = self._states.setdefault(
            descriptor.name, DictBatchList(descriptor, self._max_parallelism)
        )
        if not isinstance(state, DictBatchList) or state.descriptor != descriptor:
            raise Rejected(f"The state {descriptor.name!r} is declared twice, and differently.")
        return state

    def cut(self) -> list[FrozenState]:
        return [state.freeze() for state in self._states.values()]

    def restore(self, state: str, batches: Iterable[pa.RecordBatch]) -> None:
        if state not in self._states:
            raise Rejected(f"The state {state!r} is not declared.")
        for batch in batches:
            self._restore(self._states[state], batch)

    def cut_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> list[FrozenState]:
        return self.cut()

    def cut_native(self) -> list[FrozenState]:
        return self.cut()

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """Every cut is whole."""

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Every cut is whole."""

    def adopt(self, database: StoredDatabase) -> bool:
        return False

    def settle(self) -> None:
        """Row numbers stay as they are."""

    def close(self) -> None:
        """Nothing is held but memory."""

    def statistics(self) -> BackendStatistics:
        rows = sum(len(state) for state in self._states.values())
        return BackendStatistics(rows, rows * 8)

    def _restore(self, state: DictTable | DictBatchList, batch: pa.RecordBatch) -> None:
        for field in state.schema:
            index = batch.schema.get_field_index(field.name)
            if index < 0 or batch.schema.field(index).type != field.type:
                raise Rejected(
                    f"The column {field.name!r} of the state {state.descriptor.name!r} is not "
                    f"{field.type} in the snapshot."
                )
        own = [group in self._groups for group in batch.column(KEY_GROUP_COLUMN).to_pylist()]
        state.load(batch.filter(pa.array(own, pa.bool_())))


def tuples(batch: pa.RecordBatch) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def batch_of(rows: list[Key], schema: pa.Schema) -> pa.RecordBatch:
    columns = [[row[index] for row in rows] for index in range(len(schema))]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def groups_of(batch: pa.RecordBatch, by: tuple[str, ...], max_parallelism: int) -> pa.Array:
    return pa.array(key_groups(key_hashes(batch, by), max_parallelism), pa.uint16())
