"""One value per key, for whole batches of keys. Source: Flink's `ValueState`."""

import pyarrow as pa

from pipelines.state.arrow_types import validity
from pipelines.state.backend import NO_ROW
from pipelines.state.descriptors import ValueStateDescriptor
from pipelines.state.entries import Entries, KeyedStateContext, distinct_rows, last_of_each
from pipelines.state.value_layout import ValueLayout


class ValueState:
    """`keys` have the columns of the stream's key; arrays have one element per key, in order."""

    def __init__(self, context: KeyedStateContext, descriptor: ValueStateDescriptor) -> None:
        layout = ValueLayout.of(descriptor.name, descriptor.type)
        self._entries = Entries(context, layout, descriptor.ttl)

    @property
    def type(self) -> pa.DataType:
        return self._entries.type

    @property
    def renews_on_read(self) -> bool:
        """True if reading renews an entry."""
        return self._entries.renews_on_read

    def value(self, keys: pa.RecordBatch) -> pa.Array:
        """Null where there is no value."""
        values = self.peek(keys)
        self.renew_read(keys)
        return values

    def update(self, keys: pa.RecordBatch, values: pa.Array) -> None:
        """Where keys repeat, the last value stays. Null is no value: it clears the key."""
        rows = self._entries.table.rows_for(keys)
        if values.null_count:
            last = last_of_each(rows)
            rows, values = rows[last], values.take(pa.array(last))
            has_value = validity(values)
            self._entries.table.delete(rows[~has_value])
            rows, values = rows[has_value], values.drop_null()
        self._entries.write(rows, values)

    def clear(self, keys: pa.RecordBatch) -> None:
        table = self._entries.table
        table.delete(distinct_rows(table.find(keys)))

    def peek(self, keys: pa.RecordBatch) -> pa.Array:
        """Like `value`, but does not count as a read."""
        rows = self._entries.table.find(keys)
        rows[~self._entries.visible(rows)] = NO_ROW
        return self._entries.read(rows)

    def renew_read(self, keys: pa.RecordBatch) -> None:
        """Counts the preceding `peek` of these keys as a read."""
        if self._entries.renews_on_read:
            self._entries.renew_read(self._entries.table.find(keys))

    def remove_expired(self, limit: int) -> None:
        """Check the next `limit` entries; repeated calls go round all of them."""
        self._entries.table.delete(self._entries.scan_expired(limit))
