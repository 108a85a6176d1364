"""A list per key, for whole batches of keys. Source: Flink's `ListState`, expiry by element.

Numbered elements of a key: the positions that a list, or the keys of a map, use.

Each key has one row with the range of its positions, and one row per element under the key and its
position. So all elements of a key are found by computing, not by searching, and a backend needs no
order among its keys.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.state.arrow_types import ValueLayout
from pipelines.state.backend import NO_ROW, Rows, ScanPosition, Table
from pipelines.state.descriptors import ListStateDescriptor
from pipelines.state.entries import (
    Entries,
    KeyedStateContext,
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
        """The position of one more element for each of `keys`, in their order."""
        rows = self._table.rows_for(keys)
        positions = self._longs(END, rows) + ranks(rows)
        self._table.write(END, rows, positions + 1)  # for a repeated key, the last one stays
        return positions

    def of(self, keys: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Where the positions of each key begin and end; equal if there are none."""
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
        """The distinct keys among keys that have elements, and which of them each one is."""
        rows, owners = np.unique(self._table.find(keys), return_inverse=True)
        return self._table.keys(rows), owners

    def set(self, keys: pa.RecordBatch, begins: Rows, ends: Rows) -> None:
        """Give distinct keys other bounds; a key without positions is forgotten."""
        rows = self._table.find(keys)
        remains = begins < ends
        self._table.write(BEGIN, rows[remains], begins[remains])
        self._table.write(END, rows[remains], ends[remains])
        self._table.delete(rows[~remains])

    def next_keys(self, limit: int) -> pa.RecordBatch:
        """The next keys that have elements; repeated calls go round all of them."""
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
    """`count` lists made of elements that are sorted by their list."""
    lengths = np.bincount(owners, minlength=count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)


class ListState:
    """`keys` have the columns of the stream's key."""

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
        """One element for each key; keys may repeat, and order is kept."""
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
        """Check the lists of the next `limit` keys; repeated calls go round all of them."""
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
        """Let each list begin with its first remaining element; gaps after it do no harm."""
        _, ends = self._extents.of(keys)
        begins = ends.copy()
        owners, first = np.unique(elements.owners[remains], return_index=True)
        begins[owners] = elements.positions[remains][first]
        self._extents.set(keys, begins, ends)
