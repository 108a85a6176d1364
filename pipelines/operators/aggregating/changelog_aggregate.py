"""Running totals of a changelog, with minimum, maximum or a count of distinct values.

Sums and counts subtract the rows that are taken back. The others need to know which values are
left, so the operator keeps the values of each key, each with its count. Rows arrive whole, because
a step before the exchange could combine sums but not these.

The values take three tables. The first has a row for each key and value, with its count. Values
that can be ordered also have a place, from 0 without gaps; the second table has the value at each
place, so that the operator can scan the values of a key. The third has the number of values of each
key, with the least and the greatest one. The operator scans the values of a key only when one of
those two goes. A value that is taken back before it arrives keeps a count below 0, and does not
count as present.

Source: Flink's `MinWithRetractAggFunction`, which scans its map of counts in the same way.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected, check
from pipelines.operators.aggregating.aggregates import (
    NO_CONDITION,
    Aggregate,
    CountDistinct,
    Fold,
)
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct, refuse_kind_key
from pipelines.operators.changelog import signs
from pipelines.operators.columns import Groups, Longs, field_of, group, is_whole, longs
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.backend import NO_ROW, Default, Rows, StateBackend, Table, TableDescriptor
from pipelines.state.descriptors import StateDescriptor, check_table
from pipelines.state.entries import with_column

VALUE, PLACE = "__value", "__place"
_COUNT, _SIZE, _LEAST, _GREATEST = "count", "size", "least", "greatest"
_PLACES_MAX = 1 << 40

Flags = npt.NDArray[np.bool_]
Ends = npt.NDArray[Any]
"""int64 or float64: one value per key."""


class CountedValues:
    """Guarantee: knows the distinct values of each key, and the least and the greatest one.

    The values are those of all rows added to the key minus those taken back. A null is no value.
    """

    def __init__(self, keys: tuple[str, ...], column: str, schema: pa.Schema) -> None:
        """Raises Rejected naming a column that state cannot hold."""
        self._keys = list(keys)
        self._column = column
        self._type = field_of(schema, column).type
        self._has_order = has_order(self._type)
        self._key_schema = pa.schema([field_of(schema, key) for key in keys])
        for descriptor in self._descriptors():
            check_table(descriptor)

    def open(self, state: StateBackend) -> None:
        tables = [state.table(descriptor) for descriptor in self._descriptors()]
        self._values, self._sizes = tables[0], tables[1]
        self._places: Table | None = tables[2] if self._has_order else None

    def add(self, batch: pa.RecordBatch, signs: Longs) -> None:
        """Adds the rows whose sign is 1, and takes back those whose sign is -1.

        1. Sum the signs of each key and value. 2. Take out the values that are gone, and close the
        gaps in the places. 3. Put new values at the next places. 4. Note the counts. 5. Find the
        ends of the keys that have changed.
        """
        is_value = batch.column(self._column).is_valid()
        if batch.column(self._column).null_count:
            batch, signs = batch.filter(is_value), signs[is_value.to_numpy(zero_copy_only=False)]
        coded = with_column(batch.select(self._keys), VALUE, self._coded(batch))
        groups = group(coded, [*self._keys, VALUE])
        of_values = np.zeros(groups.count, np.int64)
        np.add.at(of_values, groups.index, signs)
        rows = self._values.find(groups.keys)
        before = self._read(_COUNT, rows)
        now = before + of_values
        comes, goes = (before <= 0) & (now > 0), (before > 0) & (now <= 0)
        by_key = group(groups.keys, self._keys)
        size_rows = self._sizes.rows_for(by_key.keys)
        sizes = self._sizes.read(_SIZE, size_rows).astype(np.int64)
        places = np.full(groups.count, NO_ROW)
        left = sizes - _members(by_key, goes)
        if self._places is not None:
            self._take_out(self._places, by_key, goes, self._read(PLACE, rows), left)
            places[comes] = self._put_behind(self._places, groups.keys, by_key, comes, left)
        self._note(groups.keys, now, comes, places)
        sizes = left + _members(by_key, comes)
        self._sizes.write(_SIZE, size_rows, sizes)
        if self._places is not None:
            values = self._decoded(longs(groups.keys.column(VALUE)))
            self._note_ends(
                self._places, by_key, size_rows, sizes, values=values, comes=comes, goes=goes
            )

    def distinct(self, keys: pa.RecordBatch) -> Longs:
        """Returns how many distinct values each key has."""
        rows = self._sizes.rows_for(keys)
        return self._sizes.read(_SIZE, rows).astype(np.int64)

    def end(self, keys: pa.RecordBatch, *, is_least: bool) -> pa.Array:
        """Returns the least or greatest value of each key, in the column's type; null if none."""
        rows = self._sizes.rows_for(keys)
        ends = self._sizes.read(_LEAST if is_least else _GREATEST, rows)
        is_empty = self._sizes.read(_SIZE, rows) == 0
        return pa.array(ends, mask=is_empty).cast(self._type)

    def _take_out(
        self, places: Table, by_key: Groups, goes: Flags, held: Longs, left: Longs
    ) -> None:
        """Moves the values at the last places of a key to the places that become free."""
        if not goes.any():
            return
        keys, free = by_key.index[goes], held[goes]
        gone = np.bincount(keys, minlength=by_key.count)
        last_keys = np.repeat(np.arange(by_key.count), gone)
        last = left[last_keys] + _numbered(last_keys)
        last_rows = places.find(self._at(by_key.keys, last_keys, last))
        moves = ~np.isin(last_keys * _PLACES_MAX + last, keys * _PLACES_MAX + free)
        is_hole = free < left[keys]
        order = np.argsort(keys[is_hole], kind="stable")
        hole_keys, holes = keys[is_hole][order], free[is_hole][order]
        check(bool((hole_keys == last_keys[moves]).all()), "each free place gets one value")
        moved = places.read(VALUE, last_rows[moves])
        places.write(VALUE, places.find(self._at(by_key.keys, hole_keys, holes)), moved)
        of_keys = by_key.keys.take(pa.array(hole_keys))
        rows = self._values.find(with_column(of_keys, VALUE, pa.array(moved, pa.int64())))
        self._values.write(PLACE, rows, holes)
        places.delete(last_rows)

    def _put_behind(
        self, places: Table, values: pa.RecordBatch, by_key: Groups, comes: Flags, left: Longs
    ) -> Longs:
        keys = by_key.index[comes]
        order = np.argsort(keys, kind="stable")
        number = np.empty(len(keys), np.int64)
        number[order] = _numbered(keys[order])
        behind = left[keys] + number
        rows = places.rows_for(self._at(by_key.keys, keys, behind))
        places.write(VALUE, rows, longs(values.column(VALUE))[comes])
        return np.asarray(behind)

    def _note(self, values: pa.RecordBatch, counts: Longs, comes: Flags, places: Longs) -> None:
        rows = self._values.rows_for(values)
        self._values.write(_COUNT, rows, counts)
        if self._has_order:
            self._values.write(PLACE, rows[comes], places[comes])
        self._values.delete(rows[counts == 0])

    def _note_ends(
        self,
        places: Table,
        by_key: Groups,
        rows: Rows,
        sizes: Longs,
        *,
        values: Ends,
        comes: Flags,
        goes: Flags,
    ) -> None:
        least, greatest = self._sizes.read(_LEAST, rows), self._sizes.read(_GREATEST, rows)
        of_goers, at = values[goes], by_key.index[goes]
        is_inside = (of_goers > least[at]) & (of_goers < greatest[at])
        lost = np.unique(at[~is_inside])  # keys whose end may be gone
        _widen(least, greatest, by_key.index[comes], values[comes])
        least[lost], greatest[lost] = self._no_ends(len(lost))
        keys = np.repeat(lost, sizes[lost])
        held = places.find(self._at(by_key.keys, keys, _numbered(keys)))
        _widen(least, greatest, keys, self._decoded(places.read(VALUE, held).astype(np.int64)))
        self._sizes.write(_LEAST, rows, least)
        self._sizes.write(_GREATEST, rows, greatest)

    def _no_ends(self, count: int) -> tuple[Ends, Ends]:
        least, greatest = no_ends(self._type)
        return np.full(count, least), np.full(count, greatest)

    def _read(self, column: str, rows: Rows) -> Longs:
        """Returns the column's values, or 0 where there is no row."""
        is_there = rows != NO_ROW
        values = np.zeros(len(rows), np.int64)
        if column in self._value_names:
            values[is_there] = self._values.read(column, rows[is_there])
        return values

    def _at(self, keys: pa.RecordBatch, index: Longs, places: Longs) -> pa.RecordBatch:
        return with_column(keys.take(pa.array(index)), PLACE, pa.array(places, pa.int64()))

    def _coded(self, batch: pa.RecordBatch) -> pa.Array:
        """Encodes values with an order in 64 bits, which any state can have as a key."""
        column = batch.column(self._column)
        if not self._has_order:
            return column
        if not pa.types.is_floating(self._type):
            return pa.array(longs(column), pa.int64())
        floats = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
        return pa.array(np.where(np.isnan(floats), np.nan, floats).view(np.int64), pa.int64())

    def _decoded(self, codes: Longs) -> Ends:
        return codes.view(np.float64) if pa.types.is_floating(self._type) else codes

    @property
    def _value_names(self) -> list[str]:
        return [_COUNT, PLACE] if self._has_order else [_COUNT]

    def _descriptors(self) -> list[TableDescriptor]:
        name, by = StateDescriptor(self._column).name, tuple(self._keys)
        value_type = pa.int64() if self._has_order else self._type
        sizes: dict[str, Default] = {_SIZE: 0}
        if self._has_order:
            sizes |= dict(zip((_LEAST, _GREATEST), no_ends(self._type), strict=True))
        end_type = pa.float64() if pa.types.is_floating(self._type) else pa.int64()
        described = [
            TableDescriptor(
                f"{name}.values",
                self._key_schema.append(pa.field(VALUE, value_type)),
                pa.schema([(each, pa.int64()) for each in self._value_names]),
                dict.fromkeys(self._value_names, 0),
                by,
            ),
            TableDescriptor(
                f"{name}.sizes",
                self._key_schema,
                pa.schema([(each, pa.int64() if each == _SIZE else end_type) for each in sizes]),
                sizes,
                by,
            ),
        ]
        if self._has_order:
            place = self._key_schema.append(pa.field(PLACE, pa.int64()))
            at_place = pa.schema([(VALUE, pa.int64())])
            described.append(TableDescriptor(f"{name}.places", place, at_place, {VALUE: 0}, by))
        return described


def has_order(given: pa.DataType) -> bool:
    """True for numbers and timestamps; uint64 does not fit the 64 bits that values are kept in."""
    return is_whole(given) or bool(pa.types.is_floating(given))


def no_ends(given: pa.DataType) -> tuple[int | float, int | float]:
    """Returns the initial least and greatest value of a key that has no value yet."""
    if pa.types.is_floating(given):
        return float("inf"), float("-inf")
    bounds = np.iinfo(np.int64)
    return int(bounds.max), int(bounds.min)


def _widen(least: Ends, greatest: Ends, keys: Longs, values: Ends) -> None:
    with np.errstate(invalid="ignore"):  # NaN is the end, as it is without a changelog
        np.minimum.at(least, keys, values)
        np.maximum.at(greatest, keys, values)


def _members(by_key: Groups, chosen: Flags) -> Longs:
    counted = np.bincount(by_key.index[chosen], minlength=by_key.count)
    return counted.astype(np.int64)


def _numbered(ordered: Longs) -> Longs:
    """Counts, for each element, the equal ones before it. Equal elements must be neighbours."""
    positions = np.arange(len(ordered))
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(positions - np.maximum.accumulate(np.where(begins, positions, 0)))


def needs_values(aggregate: Aggregate) -> TypeGuard[Fold | CountDistinct]:
    """True if taking back a row may change the result to a value of an earlier row."""
    is_end = isinstance(aggregate, Fold) and aggregate.name in ("min", "max")
    return is_end or isinstance(aggregate, CountDistinct)


class ChangelogAggregate(Operator):
    """Guarantee: the results are those of the rows that were added and not taken back."""

    def __init__(self, keys: tuple[str, ...], aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = keys
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        refuse_kind_key(self._keys)
        check_distinct([*self._keys, *self._aggregates])
        self._counted(inputs[0])
        fields = [field_of(inputs[0], key) for key in self._keys]
        summed = self._summed(inputs[0])
        for name, aggregate in self._aggregates.items():
            if needs_values(aggregate):
                fields.append(pa.field(name, _result_type(aggregate, inputs[0])))
            elif summed is not None:
                fields.append(summed.output_schema.field(name))
        return pa.schema(fields)

    def emits_changes(self, inputs: list[bool]) -> bool:
        return False

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = self.output_schema(inputs)
        self._sums = self._summed(inputs[0])
        if self._sums is not None:
            self._totals = context.state.table(self._sums.descriptor("totals", self._keys))
        self._values = self._counted(inputs[0])
        for counted in self._values.values():
            counted.open(context.state)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        of_rows = signs(batch)
        for counted in self._values.values():
            counted.add(batch, of_rows)
        groups = group(batch, list(self._keys))
        results = {name: groups.keys.column(name) for name in self._keys}
        if self._sums is not None:
            reduced = self._sums.reduce(self._sums.lift(batch), groups)
            totals = self._sums.fold(self._totals, groups.keys, reduced)
            summed = self._sums.results(groups.keys, totals)
            results |= dict(zip(summed.schema.names, summed.columns, strict=True))
        for name, aggregate in self._aggregates.items():
            if needs_values(aggregate):
                results[name] = self._result(aggregate, groups.keys)
        columns = [results[name] for name in self._schema.names]
        self.context.collect(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _result(self, aggregate: Fold | CountDistinct, keys: pa.RecordBatch) -> pa.Array:
        values = self._values[aggregate.column]
        if isinstance(aggregate, Fold):
            return values.end(keys, is_least=aggregate.name == "min")
        return pa.array(values.distinct(keys), pa.int64())

    def _summed(self, schema: pa.Schema) -> Aggregation | None:
        summed = {name: a for name, a in self._aggregates.items() if not needs_values(a)}
        return Aggregation.of(self._keys, summed, schema, of_changes=True) if summed else None

    def _counted(self, schema: pa.Schema) -> dict[str, CountedValues]:
        columns = [each.column for each in self._aggregates.values() if needs_values(each)]
        for each in self._aggregates.values():
            if isinstance(each, CountDistinct) and each.where is not None:
                raise Rejected(NO_CONDITION.format(each.column))
        return {each: CountedValues(self._keys, each, schema) for each in dict.fromkeys(columns)}


def _result_type(aggregate: Fold | CountDistinct, schema: pa.Schema) -> pa.DataType:
    """Raises Rejected naming a column that has no least value."""
    return aggregate.bind(schema).output_type if isinstance(aggregate, Fold) else pa.int64()
