"""The best rows of each key, as durable state: one row of a table per key and rank.

Ranks begin at 0 and have no gaps, so the row at the last rank tells whether a new row can enter at
all. Most rows cannot, and cost one look-up per key. A batch is ranked as a whole, together with the
rows that its keys have. If each key keeps only one row, the operator compares it with the best new
row of the key and sorts nothing. NaN comes after every value, and null comes last.

Source: Flink SQL's `AppendOnlyTopNFunction`, with one change per key, rank and batch.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import Flags, Groups, Longs, field_of, group, is_whole, longs
from pipelines.state.backend import NO_ROW, Rows, StateBackend, TableDescriptor
from pipelines.state.descriptors import check_table
from pipelines.state.entries import with_column

RANK = "__rank"


@dataclass(frozen=True, slots=True)
class Order:
    """Decides which of two rows comes first. `column` None: only the order of arrival decides."""

    column: str | None
    descending: bool = False
    newest_first: bool = False  # among rows that are equal in the column; otherwise oldest first

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """Raises Rejected if the column is missing, or cannot order the rows of a key."""
        if self.column is None:
            return
        field_of(schema, self.column)
        if self.column in keys:
            raise Rejected(
                f"The rows of a key are equal in its column {self.column!r}; order them by another."
            )

    def of(self, rows: pa.RecordBatch) -> Longs:
        """Returns the code of each row."""
        if self.column is None:
            return np.zeros(rows.num_rows, np.int64)
        return self.codes(rows.column(self.column))

    def codes(self, column: pa.Array) -> Longs:
        """Returns numbers that order as the values do, the best one first."""
        if is_whole(column.type) and not column.null_count:
            values = longs(column)
            return ~values if self.descending else values
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        direction = "descending" if self.descending else "ascending"
        ranked = pc.rank(column, direction, tiebreaker="dense")
        return np.asarray(ranked.to_numpy()).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RankedChanges:
    """Rows that were taken from their rank and rows that were put at a rank, with these ranks.

    `left` flags the taken rows that are no longer in the result; `entered` flags the put rows that
    are new in it. The others have only moved to another rank.
    """

    taken: pa.RecordBatch
    taken_ranks: Longs
    left: Flags
    put: pa.RecordBatch
    put_ranks: Longs
    entered: Flags


class RankedRows:
    """Guarantee: of all rows added to a key, keeps exactly the first `n` in the order."""

    def __init__(
        self,
        state: StateBackend,
        descriptor: TableDescriptor,
        schema: pa.Schema,
        order: Order,
        n: int,
    ) -> None:
        self.table = state.table(descriptor)
        self._schema = schema
        self._keys = [name for name in descriptor.key.names if name != RANK]
        self._has_ranks = RANK in descriptor.key.names
        self._order = order
        self._n = n

    def add(self, rows: pa.RecordBatch) -> RankedChanges | None:
        """Adds rows; returns None if no row was good enough.

        1. Leave out rows that cannot enter. 2. Rank the others together with the rows that their
        keys have. 3. Write the ranks that have another row now.
        """
        rows = rows.select(self._schema.names)
        groups = group(rows, self._keys)
        if self._n == 1:
            return self._add_best(rows, groups)
        may_enter = self._may_enter(rows, groups.keys, groups.index)
        if not may_enter.all():
            rows = rows.filter(pa.array(may_enter))
            if rows.num_rows == 0:
                return None
            groups = group(rows, self._keys)
        held, held_index, held_ranks = self._held(groups.keys)
        index = np.concatenate([held_index, groups.index])
        codes = self._codes(held, rows)
        arrival = np.arange(len(index))
        order = np.lexsort((-arrival if self._order.newest_first else arrival, codes, index))
        rank = np.empty(len(index), np.int64)
        rank[order] = _ranks(index[order])
        before = np.append(held_ranks, np.full(rows.num_rows, _NONE))
        after = np.where(rank < self._n, rank, _NONE)
        return self._changed(held, rows, groups.keys, index, before, after)

    def rows(self, numbers: Rows) -> pa.RecordBatch:
        """Returns the rows at these row numbers of the table."""
        keys = self.table.keys(numbers)
        columns = [
            keys.column(name) if name in self._keys else self.table.read_arrow(name, numbers)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _may_enter(self, rows: pa.RecordBatch, keys: pa.RecordBatch, index: Longs) -> Rows:
        if self._order.column is None:
            return np.ones(rows.num_rows, np.bool_)
        worst = self.table.find(self._at(keys, np.full(keys.num_rows, self._n - 1)))
        is_full = worst != NO_ROW
        if not is_full.any():
            return np.ones(rows.num_rows, np.bool_)
        codes = self._codes(worst[is_full], rows)
        bound = np.zeros(keys.num_rows, np.int64)
        bound[is_full], of_rows = np.split(codes, [len(codes) - rows.num_rows])
        return np.asarray(self._precedes(of_rows, bound[index]) | ~is_full[index])

    def _precedes(self, new: Longs, held: Longs) -> Flags:
        """Flags the new rows that come before the held ones."""
        return np.asarray(new <= held if self._order.newest_first else new < held)

    def _add_best(self, rows: pa.RecordBatch, groups: Groups) -> RankedChanges | None:
        """Compares each key's best row with its best new row; no other new row matters."""
        first = np.zeros(groups.count, np.int64)
        numbers, is_fresh = self.table.enter(self._at(groups.keys, first))
        held = numbers[~is_fresh]
        codes = self._codes(held, rows)
        of_held, of_rows = np.split(codes, [len(held)])
        best = _best_of_groups(of_rows, groups, newest_first=self._order.newest_first)
        enters = is_fresh.copy()
        enters[~is_fresh] = self._precedes(of_rows[best[~is_fresh]], of_held)
        if not enters.any():
            return None
        taken = self.rows(numbers[enters & ~is_fresh])
        put = rows.take(pa.array(best[enters]))
        self._write(numbers[enters], put)
        return RankedChanges(
            taken=taken,
            taken_ranks=np.zeros(taken.num_rows, np.int64),
            left=np.ones(taken.num_rows, np.bool_),
            put=put,
            put_ranks=np.zeros(put.num_rows, np.int64),
            entered=np.ones(put.num_rows, np.bool_),
        )

    def _held(self, keys: pa.RecordBatch) -> tuple[Rows, Longs, Longs]:
        """Returns the rows of distinct keys: row number, position of the key, rank."""
        index = np.repeat(np.arange(keys.num_rows), self._n)
        ranks = np.tile(np.arange(self._n), keys.num_rows)
        numbers = self.table.find(self._at(keys.take(pa.array(index)), ranks))
        is_held = numbers != NO_ROW
        return numbers[is_held], index[is_held], ranks[is_held]

    def _codes(self, held: Rows, rows: pa.RecordBatch) -> Longs:
        if self._order.column is None:
            return np.zeros(len(held) + rows.num_rows, np.int64)
        column = rows.column(self._order.column)
        return self._order.codes(
            pa.concat_arrays([self.table.read_arrow(self._order.column, held), column])
        )

    def _changed(
        self,
        held: Rows,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        index: Longs,
        before: Longs,
        after: Longs,
    ) -> RankedChanges:
        """`before` and `after` are the ranks of each held and each new row, _NONE for none."""
        has_moved = before != after
        was_held = has_moved[: len(held)]
        moved = pa.concat_batches(
            [self.rows(held[was_held]), rows.filter(pa.array(has_moved[len(held) :]))]
        )
        index, before, after = index[has_moved], before[has_moved], after[has_moved]
        taken, put = np.flatnonzero(before != _NONE), np.flatnonzero(after != _NONE)
        changes = RankedChanges(
            moved.take(pa.array(taken)),
            before[taken],
            after[taken] == _NONE,
            moved.take(pa.array(put)),
            after[put],
            before[put] == _NONE,
        )
        places = self._at(keys.take(pa.array(index[put])), after[put])
        self._write(self.table.rows_for(places), changes.put)
        return changes

    def _write(self, numbers: Rows, rows: pa.RecordBatch) -> None:
        for name in self._schema.names:
            if name not in self._keys:
                self.table.write_arrow(name, numbers, rows.column(name))

    def _at(self, keys: pa.RecordBatch, ranks: Longs) -> pa.RecordBatch:
        if not self._has_ranks:
            return keys
        return with_column(keys, RANK, pa.array(ranks, pa.int32()))


_NONE = -1


def ranked_table(
    name: str, schema: pa.Schema, keys: tuple[str, ...], by: tuple[str, ...], *, has_ranks: bool
) -> TableDescriptor:
    """Describes a table. `keys` are without the rank; those in `by` decide the key group.

    Raises Rejected naming a column that state cannot hold.
    """
    key = pa.schema([field_of(schema, each) for each in keys])
    value = pa.schema([field for field in schema if field.name not in keys])
    key = key.append(pa.field(RANK, pa.int32())) if has_ranks else key
    descriptor = TableDescriptor(name, key, value, dict.fromkeys(value.names), by)
    check_table(descriptor)
    return descriptor


def _best_of_groups(codes: Longs, groups: Groups, *, newest_first: bool) -> Longs:
    """Returns the position of the best row of each group."""
    least = np.full(groups.count, np.iinfo(np.int64).max)
    np.minimum.at(least, groups.index, codes)
    equal = np.flatnonzero(codes == least[groups.index])
    best = np.empty(groups.count, np.int64)
    # If there are several, the last one written stays.
    ordered = equal if newest_first else equal[::-1]
    best[groups.index[ordered]] = ordered
    return best


def _ranks(ordered: Longs) -> Longs:
    """Counts, for each element, the equal ones before it. Equal elements must be neighbours."""
    positions = np.arange(len(ordered))
    begins = np.append(True, ordered[1:] != ordered[:-1])
    return np.asarray(positions - np.maximum.accumulate(np.where(begins, positions, 0)))
