"""One value or accumulator per key, for whole batches of keys.

Reducing and aggregating states fold added values into one accumulator per key. The values of a
batch are first folded among themselves, pair by pair: a key that occurs n times takes about log2(n)
calls of the function, each for all keys at once. The result is then folded into the state once.
Order is kept.

Source: Flink's `ValueState`, `ReducingState` and `AggregatingState`.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.arrow_types import ValueLayout, validity
from pipelines.state.backend import NO_ROW, Rows
from pipelines.state.descriptors import (
    AggregatingStateDescriptor,
    BatchAggregateFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import (
    Entries,
    KeyedStateContext,
    Mask,
    distinct_rows,
    last_of_each,
    ranks,
)


class ValueState:
    """A value per key. `keys` have the columns of the stream's key; arrays match them in order."""

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
        """Returns the value of each key, or null if there is none."""
        values = self.peek(keys)
        self.renew_read(keys)
        return values

    def update(self, keys: pa.RecordBatch, values: pa.Array) -> None:
        """Writes one value per key. If a key repeats, its last value stays. A null clears a key."""
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
        """Checks the next `limit` entries; repeated calls cycle through all of them."""
        self._entries.table.delete(self._entries.scan_expired(limit))


Merge = Callable[[pa.Array, pa.Array], pa.Array]
Convert = Callable[[pa.Array], pa.Array]


class Accumulators:
    """One accumulator per key, written as a whole."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    @property
    def type(self) -> pa.DataType:
        return self._entries.type

    @property
    def renews_on_read(self) -> bool:
        """True if reading renews an entry."""
        return self._entries.renews_on_read

    def peek(self, keys: pa.RecordBatch) -> pa.Array:
        """Returns the accumulator of each key, or null; does not count as a read."""
        return self._entries.read(self._visible_rows(keys))

    def put(self, keys: pa.RecordBatch, accumulators: pa.Array) -> None:
        """Overwrites the accumulators of distinct keys."""
        self._entries.write(self._entries.table.rows_for(keys), accumulators)

    def renew_read(self, keys: pa.RecordBatch) -> None:
        """Counts the preceding `peek` of these keys as a read."""
        if self._entries.renews_on_read:
            self._entries.renew_read(self._entries.table.find(keys))

    def clear(self, keys: pa.RecordBatch) -> None:
        table = self._entries.table
        table.delete(distinct_rows(table.find(keys)))

    def remove_expired(self, limit: int) -> None:
        """Checks the next `limit` entries; repeated calls cycle through all of them."""
        self._entries.table.delete(self._entries.scan_expired(limit))

    def _visible_rows(self, keys: pa.RecordBatch) -> Rows:
        rows = self._entries.table.find(keys)
        rows[~self._entries.visible(rows)] = NO_ROW
        return rows


class FoldingState(Accumulators):
    """Guarantee: the accumulator of a key folds the key's values in order of arrival."""

    def __init__(self, entries: Entries, lift: Convert, merge: Merge, result: Convert) -> None:
        super().__init__(entries)
        self._lift = lift
        self._merge = merge
        self._result = result

    def add(self, keys: pa.RecordBatch, values: pa.Array) -> None:
        """Adds one value for each key; keys may repeat."""
        if not keys.num_rows:
            return
        former = self._visible_rows(keys)
        rows = self._entries.table.rows_for(keys)
        folded, last = self._fold(rows, self._lift(values))
        rows, former = rows[last], former[last]
        has_former = former != NO_ROW
        if has_former.any():
            merged = self._merge(self._entries.read(former[has_former]), _at(folded, has_former))
            self._entries.write(rows[has_former], merged)
        self._entries.write(rows[~has_former], _at(folded, ~has_former))

    def get(self, keys: pa.RecordBatch) -> pa.Array:
        """Returns the result for each key, or null if no value was added."""
        rows = self._visible_rows(keys)
        self._entries.renew_read(rows)
        found = rows != NO_ROW
        results = self._result(self._entries.read(rows[found]))
        return results.take(pa.array(np.cumsum(found) - 1, mask=~found))

    def _fold(self, groups: Rows, values: pa.Array) -> tuple[pa.Array, Rows]:
        """Folds the values of each group into one; also returns each group's last position.

        Both results are sorted by group.
        """
        order = np.argsort(groups, kind="stable")
        remaining, values = groups[order], values.take(pa.array(order))
        while True:
            rank = ranks(remaining)
            is_right = rank % 2 == 1
            if not is_right.any():
                return values, last_of_each(groups)
            right = np.flatnonzero(is_right)
            merged = self._merge(values.take(pa.array(right - 1)), values.take(pa.array(right)))
            # The merged pair replaces its left value; a value without a partner stays as it is.
            left = np.flatnonzero(~is_right)
            source = left.copy()
            paired = np.isin(left, right - 1)
            source[paired] = len(values) + np.arange(len(right))
            values = pa.concat_arrays([values, merged]).take(pa.array(source))
            remaining = remaining[left]


def accumulators(
    context: KeyedStateContext, descriptor: ReducingStateDescriptor | AggregatingStateDescriptor
) -> Accumulators:
    """Makes the state for callers that apply the descriptor's function to single values."""
    return Accumulators(_entries(context, descriptor))


def reducing(context: KeyedStateContext, descriptor: ReducingStateDescriptor) -> FoldingState:
    return FoldingState(_entries(context, descriptor), _same, descriptor.reduce, _same)


def aggregating(context: KeyedStateContext, descriptor: AggregatingStateDescriptor) -> FoldingState:
    """Raises Rejected if the function works on single values."""
    aggregate = descriptor.aggregate
    if not isinstance(aggregate, BatchAggregateFunction):
        raise Rejected(
            f"The state {descriptor.name!r} has an AggregateFunction, which works on single"
            " values; a batch function needs a BatchAggregateFunction."
        )
    entries = _entries(context, descriptor)
    return FoldingState(entries, aggregate.lift, aggregate.merge, aggregate.get_result)


def _entries(
    context: KeyedStateContext, descriptor: ReducingStateDescriptor | AggregatingStateDescriptor
) -> Entries:
    if isinstance(descriptor, ReducingStateDescriptor):
        layout = ValueLayout.of(descriptor.name, descriptor.type)
    else:
        layout = ValueLayout.of(descriptor.name, descriptor.accumulator_type)
    return Entries(context, layout, descriptor.ttl)


def _same(values: pa.Array) -> pa.Array:
    return values


def _at(values: pa.Array, mask: Mask) -> pa.Array:
    return values.filter(pa.array(mask))
