"""A list per key, for whole batches of keys. Source: Flink's `ListState`, expiry by element."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.state.backend import NO_ROW
from pipelines.state.descriptors import ListStateDescriptor
from pipelines.state.entries import Entries, KeyedStateContext, distinct_rows
from pipelines.state.extents import POSITION_KEY, Elements, Extents, as_lists, element_keys
from pipelines.state.value_layout import ValueLayout


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
