"""A list or a map per key, for whole batches of keys, with expiry by element or by entry.

Each key has one row with the range of its positions, and one row per element under the key and its
position. So the rows of a key's elements are computed, not searched for, and a backend needs no
order among its keys. An entry of a map is stored under the key and the map key, together with its
position. The map key is stored again at that position of the key, so that all entries of a key can
be found. Positions stay dense: an entry from the end fills the gap that a removed entry leaves.

Source: Flink's `ListState` and `MapState`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.state.arrow_types import ValueLayout, check_key_type
from pipelines.state.backend import NO_ROW, Rows, ScanPosition, Table
from pipelines.state.descriptors import ListStateDescriptor, MapStateDescriptor
from pipelines.state.entries import (
    Entries,
    KeyedStateContext,
    Mask,
    distinct_rows,
    ranges,
    ranks,
    with_column,
)

POSITION = "__position"
BEGIN = "__begin"
END = "__end"

POSITION_KEY = pa.schema([(POSITION, pa.int64())])
_COLUMNS = pa.schema([(BEGIN, pa.int64()), (END, pa.int64())])


@dataclass(frozen=True, slots=True)
class Elements:
    """All elements of some keys, key by key; `owners` maps each element to its key."""

    keys: pa.RecordBatch  # with the position
    positions: Rows
    owners: Rows


class Extents:
    """The positions of each key: from `BEGIN`, included, to `END`, excluded."""

    def __init__(self, context: KeyedStateContext, state: str) -> None:
        name = f"{state}.extents"
        self._table: Table = context.table(name, pa.schema([]), _COLUMNS, {BEGIN: 0, END: 0})
        self._scanned: ScanPosition | None = None

    def extend(self, keys: pa.RecordBatch) -> Rows:
        """Reserves and returns the position of one more element for each of `keys`, in order."""
        rows = self._table.rows_for(keys)
        positions = self._longs(END, rows) + ranks(rows)
        self._table.write(END, rows, positions + 1)  # for a repeated key, the last one stays
        return positions

    def of(self, keys: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Returns where the positions of each key begin and end; equal if there are none."""
        return self._bounds(self._table.find(keys))

    def elements_of(self, keys: pa.RecordBatch) -> Elements:
        return _elements(keys, *self.of(keys))

    def take(self, keys: pa.RecordBatch) -> Elements:
        """Removes and returns the elements of the keys; keys may repeat."""
        rows = self._table.find(keys)
        elements = _elements(keys, *self._bounds(rows))
        self._table.delete(distinct_rows(rows))
        return elements

    def distinct(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Rows]:
        """Returns the distinct keys, and for each of `keys` its index. All must have elements."""
        rows, owners = np.unique(self._table.find(keys), return_inverse=True)
        return self._table.keys(rows), owners

    def set(self, keys: pa.RecordBatch, begins: Rows, ends: Rows) -> None:
        """Gives distinct keys new bounds, and forgets a key that has no positions left."""
        rows = self._table.find(keys)
        remains = begins < ends
        self._table.write(BEGIN, rows[remains], begins[remains])
        self._table.write(END, rows[remains], ends[remains])
        self._table.delete(rows[~remains])

    def next_keys(self, limit: int) -> pa.RecordBatch:
        """Returns the next keys that have elements; repeated calls cycle through all of them."""
        rows, self._scanned = self._table.scan(self._scanned, limit)
        return self._table.keys(rows)

    def _bounds(self, rows: Rows) -> tuple[Rows, Rows]:
        found = rows != NO_ROW
        bounds = np.zeros((2, len(rows)), np.int64)
        for bound, name in zip(bounds, (BEGIN, END), strict=True):
            bound[found] = self._longs(name, rows[found])
        return bounds[0], bounds[1]

    def _longs(self, column: str, rows: Rows) -> Rows:
        return self._table.read(column, rows).astype(np.int64, copy=False)


def _elements(keys: pa.RecordBatch, begins: Rows, ends: Rows) -> Elements:
    positions, owners = ranges(begins, ends - begins)
    return Elements(element_keys(keys.take(pa.array(owners)), positions), positions, owners)


def element_keys(keys: pa.RecordBatch, positions: Rows) -> pa.RecordBatch:
    return with_column(keys, POSITION, pa.array(positions))


def as_lists(elements: pa.Array, owners: Rows, count: int) -> pa.ListArray:
    """Makes `count` lists from elements that are sorted by their list."""
    lengths = np.bincount(owners, minlength=count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)


class ListState:
    """A list per key; `keys` have the columns of the stream's key."""

    def __init__(self, context: KeyedStateContext, descriptor: ListStateDescriptor) -> None:
        layout = ValueLayout.of(descriptor.name, descriptor.type)
        self._extents = Extents(context, descriptor.name)
        self._entries = Entries(context, layout, descriptor.ttl, key=POSITION_KEY)

    @property
    def type(self) -> pa.DataType:
        """The type of an element."""
        return self._entries.type

    @property
    def renews_on_read(self) -> bool:
        """True if reading renews an entry."""
        return self._entries.renews_on_read

    def get(self, keys: pa.RecordBatch) -> pa.ListArray:
        """The elements of each key in order of arrival; an empty list if there are none."""
        lists = self.peek(keys)
        self.renew_read(keys)
        return lists

    def add(self, keys: pa.RecordBatch, elements: pa.Array) -> None:
        """Adds one element for each key. Keys may repeat; the order is kept."""
        if not keys.num_rows:
            return
        positions = self._extents.extend(keys)
        rows = self._entries.table.rows_for(element_keys(keys, positions))
        self._entries.write(rows, elements)

    def update(self, keys: pa.RecordBatch, lists: pa.ListArray) -> None:
        """Replaces the elements of distinct keys; an empty or null list clears its key."""
        self.clear(keys)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        owners = np.repeat(np.arange(len(lists)), lengths)
        self.add(keys.take(pa.array(owners)), lists.flatten())

    def clear(self, keys: pa.RecordBatch) -> None:
        elements = self._extents.take(keys)
        if len(elements.positions):
            table = self._entries.table
            table.delete(distinct_rows(table.find(elements.keys)))

    def peek(self, keys: pa.RecordBatch) -> pa.ListArray:
        """Like `get`, but does not count as a read."""
        elements = self._extents.elements_of(keys)
        rows = self._entries.table.find(elements.keys)
        visible = self._entries.visible(rows)
        values = self._entries.read(rows[visible])
        return as_lists(values, elements.owners[visible], keys.num_rows)

    def renew_read(self, keys: pa.RecordBatch) -> None:
        """Counts the preceding `peek` of these keys as a read."""
        if self._entries.renews_on_read:
            elements = self._extents.elements_of(keys)
            self._entries.renew_read(self._entries.table.find(elements.keys))

    def remove_expired(self, limit: int) -> None:
        """Checks the lists of the next `limit` keys; repeated calls cycle through all of them."""
        if self._entries.ttl is None:
            return
        keys = self._extents.next_keys(limit)
        elements = self._extents.elements_of(keys)
        rows = self._entries.table.find(elements.keys)
        expired = self._entries.expired(rows)
        if expired.any():
            self._entries.table.delete(rows[expired])
            self._shorten(keys, elements, (rows != NO_ROW) & ~expired)

    def _shorten(
        self, keys: pa.RecordBatch, elements: Elements, remains: npt.NDArray[np.bool_]
    ) -> None:
        """Makes each list begin with its first remaining element; gaps after it do no harm."""
        _, ends = self._extents.of(keys)
        begins = ends.copy()
        owners, first = np.unique(elements.owners[remains], return_index=True)
        begins[owners] = elements.positions[remains][first]
        self._extents.set(keys, begins, ends)


NOT_NUMBERED = -1
"""The position of an entry that was just created."""


class MapState:
    """A map per key; `keys` have the columns of the stream's key and may repeat."""

    def __init__(self, context: KeyedStateContext, descriptor: MapStateDescriptor) -> None:
        layout = ValueLayout.of(descriptor.name, descriptor.value_type)
        self._key_name = f"{descriptor.name}_key"
        self._key_type = descriptor.key_type
        self._stream_key = context.key.names
        map_key = pa.schema([(self._key_name, descriptor.key_type)])
        check_key_type(descriptor.name, map_key.field(0))
        self._entries = Entries(
            context, layout, descriptor.ttl, key=map_key, extra={POSITION: NOT_NUMBERED}
        )
        self._keys = context.table(
            f"{descriptor.name}.keys", POSITION_KEY, map_key, {self._key_name: None}
        )
        self._extents = Extents(context, descriptor.name)

    @property
    def key_type(self) -> pa.DataType:
        return self._key_type

    @property
    def value_type(self) -> pa.DataType:
        return self._entries.type

    @property
    def renews_on_read(self) -> bool:
        """True if reading renews an entry."""
        return self._entries.renews_on_read

    def get(self, keys: pa.RecordBatch, map_keys: pa.Array) -> pa.Array:
        """The value of each pair, null if there is none."""
        rows = self._visible_rows(keys, map_keys)
        self._entries.renew_read(rows)
        return self._entries.read(rows)

    def contains(self, keys: pa.RecordBatch, map_keys: pa.Array) -> Mask:
        rows = self._visible_rows(keys, map_keys)
        self._entries.renew_read(rows)
        found: Mask = rows != NO_ROW
        return found

    def put(self, keys: pa.RecordBatch, map_keys: pa.Array, values: pa.Array) -> None:
        """Writes the value of each pair. If a pair repeats, its last value stays."""
        pairs = self._pairs(keys, map_keys)
        rows = self._entries.table.rows_for(pairs)
        fresh = np.flatnonzero(self._entries.table.read(POSITION, rows) == NOT_NUMBERED)
        self._entries.write(rows, values)
        if not len(fresh):
            return
        added, first = np.unique(rows[fresh], return_index=True)
        order = np.argsort(first)  # entries are numbered in order of arrival
        self._number(pairs.take(pa.array(fresh[first[order]])), added[order])

    def remove(self, keys: pa.RecordBatch, map_keys: pa.Array) -> None:
        rows = distinct_rows(self._entries.table.find(self._pairs(keys, map_keys)))
        if len(rows):
            self._remove(rows)

    def entries(self, keys: pa.RecordBatch) -> pa.ListArray:
        """Returns, for each key, a list of structs of `key` and `value`, in no particular order."""
        lists = self.peek(keys)
        self.renew_read(keys)
        return lists

    def clear(self, keys: pa.RecordBatch) -> None:
        elements = self._extents.take(keys)
        if not len(elements.positions):
            return
        table, places = self._entries.table, self._keys.find(elements.keys)
        map_keys = self._keys.read_arrow(self._key_name, places)
        pairs = self._pairs(elements.keys.select(self._stream_key), map_keys)
        table.delete(distinct_rows(table.find(pairs)))
        self._keys.delete(distinct_rows(places))

    def peek(self, keys: pa.RecordBatch) -> pa.ListArray:
        """Like `entries`, but does not count as a read."""
        elements = self._extents.elements_of(keys)
        pairs = self._pairs_at(elements.keys)
        rows = self._entries.table.find(pairs)
        visible = np.flatnonzero(self._entries.visible(rows))
        columns = [pairs.column(self._key_name).take(pa.array(visible))]
        columns.append(self._entries.read(rows[visible]))
        entries = pa.StructArray.from_arrays(columns, names=["key", "value"])
        return as_lists(entries, elements.owners[visible], keys.num_rows)

    def renew_read(self, keys: pa.RecordBatch) -> None:
        """Counts the preceding `peek` of these keys as a read."""
        if self._entries.renews_on_read:
            elements = self._extents.elements_of(keys)
            self._entries.renew_read(self._entries.table.find(self._pairs_at(elements.keys)))

    def remove_expired(self, limit: int) -> None:
        """Checks the next `limit` entries; repeated calls cycle through all of them."""
        rows = self._entries.scan_expired(limit)
        if len(rows):
            self._remove(rows)

    def renew_read_entries(self, keys: pa.RecordBatch, map_keys: pa.Array) -> None:
        """Counts some of the entries that `peek` returned as read."""
        if self._entries.renews_on_read:
            self._entries.renew_read(self._entries.table.find(self._pairs(keys, map_keys)))

    def _visible_rows(self, keys: pa.RecordBatch, map_keys: pa.Array) -> Rows:
        rows = self._entries.table.find(self._pairs(keys, map_keys))
        rows[~self._entries.visible(rows)] = NO_ROW
        return rows

    def _number(self, pairs: pa.RecordBatch, rows: Rows) -> None:
        """Gives fresh entries their positions."""
        keys = pairs.select(self._stream_key)
        positions = self._extents.extend(keys)
        self._place(keys, positions, pairs.column(self._key_name), rows)

    def _place(self, keys: pa.RecordBatch, positions: Rows, map_keys: pa.Array, rows: Rows) -> None:
        self._entries.table.write(POSITION, rows, positions)
        places = self._keys.rows_for(element_keys(keys, positions))
        self._keys.write_arrow(self._key_name, places, map_keys)

    def _remove(self, rows: Rows) -> None:
        """1. Forget the entries. 2. Move the last entries of each key into the gaps. 3. Shorten."""
        table = self._entries.table
        keys, owners = self._extents.distinct(table.keys(rows).select(self._stream_key))
        gone = table.read(POSITION, rows).astype(np.int64, copy=False)
        table.delete(rows)
        begins, ends = self._extents.of(keys)
        shorter = ends - np.bincount(owners, minlength=keys.num_rows)
        self._fill_gaps(keys, owners, gone, shorter, ends)
        tail, tail_owners = ranges(shorter, ends - shorter)
        last = element_keys(keys.take(pa.array(tail_owners)), tail)
        self._keys.delete(self._keys.find(last))
        self._extents.set(keys, begins, shorter)

    def _fill_gaps(
        self, keys: pa.RecordBatch, owners: Rows, gone: Rows, shorter: Rows, ends: Rows
    ) -> None:
        """Moves the entries at or after the new end to the free positions before it."""
        gap = np.flatnonzero(gone < shorter[owners])
        gap = gap[np.argsort(owners[gap], kind="stable")]
        tail, tail_owners = ranges(shorter, ends - shorter)
        stride = int(ends.max()) + 1
        remains = ~np.isin(tail_owners * stride + tail, owners * stride + gone)
        moved_keys = keys.take(pa.array(tail_owners[remains]))
        pairs = self._pairs_at(element_keys(moved_keys, tail[remains]))
        rows = self._entries.table.find(pairs)
        self._place(moved_keys, gone[gap], pairs.column(self._key_name), rows)

    def _pairs(self, keys: pa.RecordBatch, map_keys: pa.Array) -> pa.RecordBatch:
        return with_column(keys, self._key_name, map_keys)

    def _pairs_at(self, elements: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the keys of the entries at some positions, which must all be in use."""
        map_keys = self._keys.read_arrow(self._key_name, self._keys.find(elements))
        return self._pairs(elements.select(self._stream_key), map_keys)
