"""Maps each key of a table to its row, even where two keys share a hash.

Owns the keys themselves, their hashes and key groups, and the row numbers. The table owns the other
contents of a row; it is notified of each fresh row.

Source: none; Flink's `CopyOnWriteStateMap` chains entries of equal hash instead.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrow_types import decoded
from pipelines.state.backend import Rows, TableDescriptor
from pipelines.state.hashing import Hashes, KeyGroups, is_bijective, is_bytes_like, key_groups
from pipelines.state.in_memory.columns import Column
from pipelines.state.in_memory.key_columns import FrozenArrays, Mask, NumberKeys, key_column
from pipelines.state.in_memory.key_index import (
    ABSENT,
    Collisions,
    Distinct,
    KeyIndex,
    RowNumbers,
    has_repeats,
)


class HashKeys(Protocol):
    def __call__(
        self, batch: pa.RecordBatch, columns: Sequence[str], after: Hashes | None = None
    ) -> Hashes:
        """As `hashing.key_hashes`."""
        ...


class KeyRows:
    """Guarantee: one row per distinct key. Needs only keys of its own key groups."""

    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
        on_added: Callable[[Rows], None],
        lock: threading.Lock,
    ) -> None:
        self._descriptor = descriptor
        self._own_groups = own_groups
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._on_added = on_added
        self._types = [(f.name, f.type) for f in descriptor.key]
        self._is_text = len(self._types) == 1 and is_bytes_like(self._types[0][1])
        self._is_exact = is_bijective(descriptor.key)  # up to the first null
        self._numbers = RowNumbers()
        self._index = KeyIndex()
        self._collisions = Collisions()
        self._hashes = Column(np.uint64, 0, lock)
        self.groups = Column(np.uint16, 0, lock)
        self.live = Column(np.bool_, False, lock)
        self.columns = {f.name: key_column(f.type, lock) for f in descriptor.key}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def length(self) -> int:
        """All row numbers are below it."""
        return self._numbers.length

    @property
    def row_bytes(self) -> int:
        """Bytes per row, not counting texts."""
        own = [self._hashes, self.groups, self.live]
        return sum(column.dtype.itemsize for column in own) + 8 * len(self.columns)

    @property
    def heap_bytes(self) -> int:
        return sum(column.heap_bytes for column in self.columns.values())

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        """The row of each key; unseen ones get fresh rows."""
        return self._look_up(keys, lambda keys: self._enter(keys)[0])

    def enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        """As `rows_for`, and True for each key that had no row; of equal ones, for the first."""
        if not keys.num_rows:
            return np.empty(0, np.int64), np.empty(0, np.bool_)
        return self._enter(self._declared(keys), group_hashes)

    def group_hashes(self, rows: pa.RecordBatch) -> Hashes:
        return self._hash_keys(rows, self._descriptor.key_group_by)

    def try_load(self, keys: pa.RecordBatch) -> Rows | None:
        """Fresh rows for keys of a snapshot; the caller fills in their values at once.

        None: some keys exist already or share a hash, and nothing was changed.
        """
        if self._is_exact and keys.column(0).null_count:
            return None
        hashes = self._hash_keys(keys, self._descriptor.key.names)
        if has_repeats(hashes) or (self._index.find(hashes) != ABSENT).any():
            return None
        rows = self._allocate(keys, hashes)
        self._index.insert(hashes, rows)
        return rows

    def expect(self, count: int) -> None:
        """Make room for `count` more rows."""
        self._index.reserve(count)
        for column in (self._hashes, self.groups, self.live):
            column.reserve(self.length + count)
        for key in self.columns.values():
            key.reserve(self.length + count)

    def find(self, keys: pa.RecordBatch) -> Rows:
        """The row of each key, ABSENT if there is none."""
        return self._look_up(keys, self._find)

    def delete(self, rows: Rows) -> None:
        if not len(rows):
            return
        check(bool(self.live.read(rows).all()), "only live rows are deleted")
        self._forget_hashes(rows)
        self.live.write(rows, False)
        self._numbers.release(rows)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        column = self.columns[key_column]
        check(isinstance(column, NumberKeys), "only numbers have a bound", column=key_column)
        return cast("NumberKeys", column).select_at_most(bound, self.live_mask)

    def keys(self, rows: Rows) -> pa.RecordBatch:
        arrays = [column.get(rows) for column in self.columns.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=self._descriptor.key)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        """The key group of each row, by the stream's key."""
        return key_groups(self.group_hashes(keys), self._max_parallelism)

    def live_mask(self) -> npt.NDArray[np.bool_]:
        return self.live.values[: self.length].astype(np.bool_, copy=False)

    def freeze(self, length: int) -> list[FrozenArrays]:
        return [column.freeze(length) for column in self.columns.values()]

    def _look_up(self, keys: pa.RecordBatch, of: Callable[[pa.RecordBatch], Rows]) -> Rows:
        """Looks each distinct text up only once."""
        keys = self._declared(keys)
        if not keys.num_rows:
            return np.empty(0, np.int64)
        if not self._is_text:
            return of(keys)
        encoded = keys.column(0).dictionary_encode(null_encoding="encode")
        distinct = pa.RecordBatch.from_arrays([encoded.dictionary], schema=self._descriptor.key)
        rows: Rows = of(distinct)[encoded.indices.to_numpy()]
        return rows

    def _declared(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        if keys.schema.equals(self._descriptor.key):
            return keys
        keys = decoded(keys)
        given = [(f.name, f.type) for f in keys.schema]
        check(given == self._types, "keys have the declared columns", keys=given)
        return keys

    def _find(self, keys: pa.RecordBatch) -> Rows:
        hashes = self._hash_keys(keys, self._descriptor.key.names)
        rows = self._index.find(hashes)
        if self._is_exact and not keys.column(0).null_count:
            return rows
        found = np.flatnonzero(rows != ABSENT)
        picked = keys.take(pa.array(found))
        strangers = found[~self._same(picked, rows[found])]
        for at, key in zip(strangers.tolist(), self._identities(keys, strangers), strict=True):
            row = self._collisions.row_of(int(hashes[at]), key)
            rows[at] = ABSENT if row is None else row
        return rows

    def _enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        """The row of each key, and which of them are fresh."""
        hashes = self._hashes_of(keys, group_hashes)
        if self._is_exact and keys.column(0).null_count:
            self._is_exact = False  # a number may have the hash of null
        rows = self._index.find(hashes)
        is_new = np.zeros(len(rows), np.bool_)
        missing = np.flatnonzero(rows == ABSENT)
        if len(missing):
            distinct = Distinct.of(hashes[missing])
            first = missing[distinct.first]
            of_groups = None if group_hashes is None else group_hashes[first]
            added = self._add(keys.take(pa.array(first)), distinct.hashes, of_groups)
            self._index.insert(distinct.hashes, added)
            rows[missing] = added.take(distinct.code)
            is_new[first] = True
        if not self._is_exact:
            self._separate(keys, hashes, rows, is_new)
        return rows, is_new

    def _hashes_of(self, keys: pa.RecordBatch, group_hashes: Hashes | None) -> Hashes:
        names, group_by = self._descriptor.key.names, self._descriptor.key_group_by
        if group_hashes is None or tuple(names[: len(group_by)]) != group_by:
            return self._hash_keys(keys, names)
        return self._hash_keys(keys, names[len(group_by) :], group_hashes)

    def _add(self, keys: pa.RecordBatch, hashes: Hashes, group_hashes: Hashes | None) -> Rows:
        """Fresh rows for distinct keys."""
        for key in self.columns.values():
            key.tidy(self.live_mask)
        rows = self._allocate(keys, hashes, group_hashes)
        self._on_added(rows)
        return rows

    def _allocate(
        self, keys: pa.RecordBatch, hashes: Hashes, group_hashes: Hashes | None = None
    ) -> Rows:
        if self._descriptor.key_group_by == tuple(self._descriptor.key.names):
            group_hashes = hashes
        hashes_of_group = self.group_hashes(keys) if group_hashes is None else group_hashes
        groups = key_groups(hashes_of_group, self._max_parallelism)
        self._check_own(groups)
        rows = self._numbers.allocate(len(hashes))
        for key in self.columns.values():
            key.reserve(self.length)
        for column in (self._hashes, self.groups, self.live):
            column.reserve(self.length)
        self._hashes.write(rows, hashes)
        self.groups.write(rows, groups)
        self.live.write(rows, True)
        for (name, _), array in zip(self._types, keys.columns, strict=True):
            self.columns[name].put(rows, array)
        return rows

    def _separate(self, keys: pa.RecordBatch, hashes: Hashes, rows: Rows, is_new: Mask) -> None:
        """Give a row of its own to each key that only shares its hash with the row it found."""
        known = np.flatnonzero(~is_new)
        strangers = known[~self._same(keys.take(pa.array(known)), rows[known])]
        for at, key in zip(strangers.tolist(), self._identities(keys, strangers), strict=True):
            key_hash = int(hashes[at])
            row = self._collisions.row_of(key_hash, key)
            if row is None:
                row = int(self._add(keys.slice(at, 1), hashes[at : at + 1], None)[0])
                self._collisions.add(key_hash, key, row)
                is_new[at] = True
            rows[at] = row

    def _same(self, keys: pa.RecordBatch, rows: Rows) -> npt.NDArray[np.bool_]:
        """True where a row holds the key itself, not another one with the same hash."""
        same = np.ones(len(rows), np.bool_)
        for (name, _), array in zip(self._types, keys.columns, strict=True):
            same &= self.columns[name].matches(rows, array)
        return same

    def _identities(self, keys: pa.RecordBatch, at: Rows) -> list[tuple[Hashable, ...]]:
        if not len(at):
            return []
        chosen = keys.take(pa.array(at))
        named = zip(self._types, chosen.columns, strict=True)
        return list(zip(*(self.columns[n].identities(a) for (n, _), a in named), strict=True))

    def _forget_hashes(self, rows: Rows) -> None:
        """Take rows out of the index; for each, a key that collided with it moves up."""
        if len(self._collisions):
            collided = self._collisions.holds(rows)
            for row in rows[collided].tolist():
                self._collisions.remove(row)
            rows = rows[~collided]
        hashes = self._hashes.read(rows).astype(np.uint64, copy=False)
        successors = np.full(len(rows), ABSENT, np.int64)
        if len(self._collisions):
            successors[:] = [self._collisions.pop_successor(h) for h in hashes.tolist()]
        has_successor = successors != ABSENT
        self._index.replace(hashes[has_successor], successors[has_successor])
        self._index.delete(hashes[~has_successor])

    def _check_own(self, groups: KeyGroups) -> None:
        own = self._own_groups
        holds = own.first <= int(groups.min()) and int(groups.max()) <= own.last
        check(holds, "a key reaches the owner of its group", table=self._descriptor.name, own=own)
