"""One keyed table of the hashmap backend: an index from key to row, and a column per value.

Keys are equal when their columns are; the hash only finds them. Where two different keys share a
hash, which 64 bits make rare, the later one lives in an overflow dictionary.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected, check
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrays import column_type, to_array, to_column
from pipelines.state.backend import KEY_GROUP_COLUMN, FrozenState, Rows, TableDescriptor
from pipelines.state.columns import Columns, ColumnsCut, ColumnStore
from pipelines.state.hashing import Hashes, is_bijective, key_groups, key_hashes
from pipelines.state.key_index import NO_ROW, KeyIndex

LIVE = "__live"
HASH = "__hash"

Key = tuple[object, ...]


class HashMapTable:
    """Implements `Table`. Used by the subtask's thread only; cuts are read by another."""

    def __init__(
        self, descriptor: TableDescriptor, groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        self._descriptor = descriptor
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._key_names = descriptor.key.names
        self._is_bijective = is_bijective(descriptor.key)
        fields = [*descriptor.key, *descriptor.value]
        types = {field.name: column_type(field, descriptor.name) for field in fields}
        types |= {
            LIVE: np.dtype(np.bool_),
            HASH: np.dtype(np.uint64),
            KEY_GROUP_COLUMN: np.dtype(np.uint16),
        }
        self._store = ColumnStore(types)
        self._index = KeyIndex()
        self._overflow: dict[Key, int] = {}
        self._overflown_rows: set[int] = set()
        self._free: list[int] = []
        self._length = 0  # rows ever used; the live ones are among them
        self._live_count = 0

    @property
    def descriptor(self) -> TableDescriptor:
        return self._descriptor

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

    def __len__(self) -> int:
        return self._live_count

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        columns = self._key_columns(keys)
        hashes = key_hashes(keys, self._key_names)
        rows = self._index.find(hashes)
        unseen = rows == NO_ROW
        if unseen.any():
            self._add_unseen(hashes[unseen], {n: c[unseen] for n, c in columns.items()}, keys)
            rows[unseen] = self._index.find(hashes[unseen])
        if not self._is_bijective:
            self._resolve_collisions(rows, columns, keys)
        return rows

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        return self._store[column][rows]

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._store.write(rows, {column: values})

    def delete(self, rows: Rows) -> None:
        if not len(rows):
            return
        check(bool(self._store[LIVE][rows].all()), "only live rows are deleted")
        in_overflow = np.array([row in self._overflown_rows for row in rows.tolist()], dtype=bool)
        for row in rows[in_overflow].tolist():
            del self._overflow[self._key_at(row)]
            self._overflown_rows.remove(row)
        freed = self._store[HASH][rows[~in_overflow]]
        self._index.remove(freed)
        self._promote(freed)
        self._store.write(rows, {LIVE: np.zeros(len(rows), dtype=np.bool_)})
        self._free.extend(rows.tolist())
        self._live_count -= len(rows)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        used = slice(0, self._length)
        due = self._store[LIVE][used] & (self._store[key_column][used] <= bound)
        return np.flatnonzero(due)

    def keys(self, rows: Rows) -> pa.RecordBatch:
        schema = self._descriptor.key
        arrays = [to_array(self._store[field.name][rows], field) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def cut(self) -> FrozenState:
        frozen = self._store.cut(self._length)
        return FrozenState(
            self._descriptor.name,
            "table",
            snapshot_schema(self._descriptor),
            self._live_count,
            _snapshot_batches(frozen, self._descriptor),
        )

    def restore(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Batches are checked against the descriptor by the backend."""
        for batch in batches:
            groups = to_column(batch.column(KEY_GROUP_COLUMN))
            own = (groups >= self._groups.first) & (groups <= self._groups.last)
            mine = batch.filter(pa.array(own))
            if mine.num_rows == 0:
                continue
            rows = self.rows_for(mine.select(self._key_names))
            values = {n: to_column(mine.column(n)) for n in self._descriptor.value.names}
            self._store.write(rows, values)

    def _key_columns(self, keys: pa.RecordBatch) -> Columns:
        for name in self._key_names:
            if keys.column(name).null_count:
                raise Rejected(f"The key column {name!r} holds a null; filter such records first.")
        return {name: to_column(keys.column(name)) for name in self._key_names}

    def _add_unseen(self, hashes: Hashes, columns: Columns, keys: pa.RecordBatch) -> None:
        """One fresh row for each distinct hash; its key is that of the first who has it."""
        distinct, first = np.unique(hashes, return_index=True)
        rows = self._allocate(len(distinct))
        chosen = {name: column[first] for name, column in columns.items()}
        self._initialize(rows, distinct, chosen)
        self._index.insert(distinct, rows)

    def _initialize(self, rows: Rows, hashes: Hashes, keys: Columns) -> None:
        count = len(rows)
        values: Columns = {
            name: np.full(count, default, dtype=self._store[name].dtype)
            for name, default in self._descriptor.defaults.items()
        }
        values |= keys
        values[LIVE] = np.ones(count, dtype=np.bool_)
        values[HASH] = hashes
        values[KEY_GROUP_COLUMN] = self._groups_of(hashes, keys)
        self._store.write(rows, values)

    def _groups_of(self, hashes: Hashes, keys: Columns) -> npt.NDArray[np.uint16]:
        """The key group comes from the stream's key, which may be a part of the table's."""
        by = self._descriptor.key_group_by
        if tuple(self._key_names) == by:
            return key_groups(hashes, self._max_parallelism)
        schema = pa.schema([self._descriptor.key.field(name) for name in by])
        arrays = [to_array(keys[field.name], field) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return key_groups(key_hashes(batch, by), self._max_parallelism)

    def _allocate(self, count: int) -> Rows:
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self._length, self._length + count - len(reused))
        self._length += len(fresh)
        self._live_count += count
        self._store.ensure(self._length)
        return np.array([*reused, *fresh], dtype=np.int64)

    def _resolve_collisions(self, rows: Rows, columns: Columns, keys: pa.RecordBatch) -> None:
        """Correct in place the rows of keys that only share their hash with a row's key."""
        differs = np.zeros(len(rows), dtype=np.bool_)
        for name, column in columns.items():
            differs |= self._store[name][rows] != column
        if not differs.any():
            return
        for position in np.flatnonzero(differs).tolist():
            key = tuple(column[position] for column in columns.values())
            rows[position] = self._overflow_row(key, keys.slice(position, 1))

    def _overflow_row(self, key: Key, single: pa.RecordBatch) -> int:
        row = self._overflow.get(key)
        if row is None:
            rows = self._allocate(1)
            columns = self._key_columns(single)
            self._initialize(rows, key_hashes(single, self._key_names), columns)
            row = self._overflow[key] = int(rows[0])
            self._overflown_rows.add(row)
        return row

    def _promote(self, freed: Hashes) -> None:
        """Give hashes that lost their row to a key of the overflow that shares them.

        Otherwise the index would call that key unseen and give it a second row.
        """
        for key, row in list(self._overflow.items()):
            shared = self._store[HASH][[row]]
            if np.isin(shared, freed).all() and self._index.find(shared)[0] == NO_ROW:
                self._index.insert(shared, np.array([row], dtype=np.int64))
                del self._overflow[key]
                self._overflown_rows.remove(row)

    def _key_at(self, row: int) -> Key:
        return tuple(self._store[name][row] for name in self._key_names)


def snapshot_schema(descriptor: TableDescriptor) -> pa.Schema:
    group = pa.field(KEY_GROUP_COLUMN, pa.uint16())
    return pa.schema([*descriptor.key, *descriptor.value, group])


def _snapshot_batches(cut: ColumnsCut, descriptor: TableDescriptor) -> Iterator[pa.RecordBatch]:
    schema = snapshot_schema(descriptor)
    for segment in cut.segments():
        live = segment[LIVE]
        if live.any():
            arrays = [to_array(segment[field.name][live], field) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
