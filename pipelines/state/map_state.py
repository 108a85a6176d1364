"""A map per key, for whole batches of keys. Source: Flink's `MapState`, expiry by entry.

An entry is stored under the key and the map key, and knows its position. The map key is stored
again at that position of the key, so that all entries of a key can be found. Positions stay dense:
an entry from the end fills the gap that a removed entry leaves.
"""

import numpy as np
import pyarrow as pa

from pipelines.state.arrow_types import ValueLayout, check_key_type
from pipelines.state.backend import NO_ROW, Rows
from pipelines.state.descriptors import MapStateDescriptor
from pipelines.state.entries import (
    Entries,
    KeyedStateContext,
    Mask,
    distinct_rows,
    ranges,
    with_column,
)
from pipelines.state.list_state import POSITION, POSITION_KEY, Extents, as_lists, element_keys

NOT_NUMBERED = -1
"""The position of an entry that was just created."""


class MapState:
    """`keys` have the columns of the stream's key; they may repeat, with any map keys."""

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
        """Where pairs repeat, the last value stays."""
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
        """For each key, a list of structs of `key` and `value`, in no particular order."""
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
        """Check the next `limit` entries; repeated calls go round all of them."""
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
        """Give fresh entries their positions."""
        keys = pairs.select(self._stream_key)
        positions = self._extents.extend(keys)
        self._place(keys, positions, pairs.column(self._key_name), rows)

    def _place(self, keys: pa.RecordBatch, positions: Rows, map_keys: pa.Array, rows: Rows) -> None:
        self._entries.table.write(POSITION, rows, positions)
        places = self._keys.rows_for(element_keys(keys, positions))
        self._keys.write_arrow(self._key_name, places, map_keys)

    def _remove(self, rows: Rows) -> None:
        """1. Forget the entries. 2. Let the last entries of each key fill the gaps. 3. Shorten."""
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
        """Entries at or behind the new end move to the free positions before it."""
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
        """The keys of the entries at some positions, all of which are in use."""
        map_keys = self._keys.read_arrow(self._key_name, self._keys.find(elements))
        return self._pairs(elements.select(self._stream_key), map_keys)
