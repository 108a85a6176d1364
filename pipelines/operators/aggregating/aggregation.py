"""Several aggregates over the same keys: their accumulator columns, and running totals.

Accumulator columns are named `<output>__<accumulator>`. Partial results may be made anywhere
(before an exchange, per batch, per subtask) and merged in any grouping. The operators before and
after an exchange share one immutable aggregation, so they agree on the columns that travel between
them.

Running totals emit new results for the keys that a batch touched. Their state is one row per key,
kept for ever. Before the exchange each batch is aggregated by itself, so that few partial results
travel, not all records. That step keeps no state, so barriers need nothing from it. Where keys
hardly repeat, it passes each record on as a partial result of its own, and now and then groups a
batch again to see if that has changed.

Source: Flink SQL's `GroupAggFunction`, with one update per key and batch, and its two-phase
(local-global) aggregation, without the buffer across batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected, check
from pipelines.operators.aggregating.aggregates import (
    Accumulator,
    Aggregate,
    BoundAggregate,
    Combine,
    Values,
)
from pipelines.operators.changelog import ROW_KIND, refuse_changelogs, signs
from pipelines.operators.columns import Groups, field_of, group
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.backend import Table, TableDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class _Output:
    name: str
    aggregate: BoundAggregate
    accumulators: tuple[Accumulator, ...]  # with the names of their columns


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Named aggregates, bound to the schema of the records; build it with `of`."""

    keys: pa.Schema
    outputs: tuple[_Output, ...]
    of_changes: bool = False  # the records are a changelog

    @classmethod
    def of(
        cls,
        keys: tuple[str, ...],
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema,
        *,
        of_changes: bool = False,
    ) -> "Aggregation":
        """Raises Rejected naming a column that is missing, unusable or produced twice.

        Over a changelog, only sums are possible; see `changelog_aggregate` for the others.
        """
        if not aggregates:
            raise Rejected("An aggregation needs at least one aggregate, such as total=count().")
        key_schema = pa.schema([field_of(schema, key) for key in keys])
        outputs = tuple(_bind(name, each, schema) for name, each in aggregates.items())
        aggregation = cls(key_schema, outputs, of_changes)
        if of_changes:
            refuse_kind_key(keys)
            is_sum = all(each.combine is Combine.SUM for each in aggregation.accumulators)
            check(is_sum, "only sums can take a row back", aggregates=list(aggregates))
        check_distinct([*keys, *aggregates])
        check_distinct(aggregation.partial_schema.names)
        return aggregation

    @property
    def key_names(self) -> list[str]:
        return list(self.keys.names)

    @property
    def accumulators(self) -> list[Accumulator]:
        return [each for output in self.outputs for each in output.accumulators]

    @property
    def partial_schema(self) -> pa.Schema:
        """The columns of a partial result: keys and accumulators."""
        return pa.schema([*self.keys, *((a.name, a.type) for a in self.accumulators)])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.keys, *((o.name, o.aggregate.output_type) for o in self.outputs)])

    def descriptor(self, name: str, key_group_by: tuple[str, ...]) -> TableDescriptor:
        accumulators = self.accumulators
        return TableDescriptor(
            name=name,
            key=self.keys,
            value=pa.schema([(a.name, a.type) for a in accumulators]),
            defaults={a.name: a.identity for a in accumulators},
            key_group_by=key_group_by,
        )

    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        """Returns the accumulators of each record alone; subtracts a row that is taken back."""
        lifted = [values for output in self.outputs for values in output.aggregate.lift(batch)]
        if not self.of_changes:
            return lifted
        of_rows = signs(batch)
        return [values * of_rows for values in lifted]

    def lifted(self, partials: pa.RecordBatch) -> list[Values]:
        """Returns the accumulators in a batch of partial results."""
        return [partials.column(a.name).to_numpy(zero_copy_only=False) for a in self.accumulators]

    def reduce(self, lifted: list[Values], groups: Groups) -> list[Values]:
        return reduce(self.accumulators, lifted, groups)

    def partials(self, keys: pa.RecordBatch, accumulated: list[Values]) -> pa.RecordBatch:
        pairs = zip(self.accumulators, accumulated, strict=True)
        columns = [accumulator.to_arrow(values) for accumulator, values in pairs]
        return pa.RecordBatch.from_arrays([*keys.columns, *columns], schema=self.partial_schema)

    def fold(self, table: Table, keys: pa.RecordBatch, reduced: list[Values]) -> list[Values]:
        """Merges values into the rows of distinct `keys`; returns their new accumulators."""
        return fold(table, self.accumulators, keys, reduced)

    def results(self, keys: pa.RecordBatch, accumulated: list[Values]) -> pa.RecordBatch:
        columns = list(keys.columns)
        remaining = list(accumulated)
        for output in self.outputs:
            own = [remaining.pop(0) for _ in output.accumulators]
            columns.append(output.aggregate.result(own))
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)


def fold(
    table: Table, accumulators: list[Accumulator], keys: pa.RecordBatch, reduced: list[Values]
) -> list[Values]:
    """Merges values into the rows of distinct `keys`; returns their new accumulators."""
    rows = table.rows_for(keys)
    merged = []
    for accumulator, values in zip(accumulators, reduced, strict=True):
        total = accumulator.merge(table.read(accumulator.name, rows), values)
        table.write(accumulator.name, rows, total)
        merged.append(total)
    return merged


def reduce(accumulators: list[Accumulator], lifted: list[Values], groups: Groups) -> list[Values]:
    """Combines the accumulators of all members of each group."""
    pairs = zip(accumulators, lifted, strict=True)
    return [accumulator.reduce(values, groups) for accumulator, values in pairs]


def _bind(name: str, aggregate: Aggregate, schema: pa.Schema) -> _Output:
    bound = aggregate.bind(schema)
    named = tuple(replace(each, name=f"{name}__{each.name}") for each in bound.accumulators)
    return _Output(name, bound, named)


def refuse_kind_key(keys: tuple[str, ...]) -> None:
    """Raises Rejected for a key that would separate rows of a changelog from their retractions."""
    if ROW_KIND in keys:
        raise Rejected(
            f"its input is a changelog, so {ROW_KIND!r} cannot be a key. Leave it out, or put"
            " as_records(uid=...) in front to read each change as a record"
        )


def check_distinct(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise Rejected(f"The column {name!r} would be produced twice; choose another name.")


class KeyedAggregate(Operator):
    def __init__(self, aggregation: Aggregation, *, merges_partials: bool = False) -> None:
        self._aggregation = aggregation
        self._accumulators_of: Callable[[pa.RecordBatch], list[Values]] = (
            aggregation.lifted if merges_partials else aggregation.lift
        )

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._aggregation.output_schema

    def emits_changes(self, inputs: list[bool]) -> bool:
        return False if self._aggregation.of_changes else refuse_changelogs(inputs)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = tuple(self._aggregation.key_names)
        self._totals = context.state.table(self._aggregation.descriptor("totals", keys))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, self._aggregation.key_names)
        reduced = self._aggregation.reduce(self._accumulators_of(batch), groups)
        totals = self._aggregation.fold(self._totals, groups.keys, reduced)
        self.context.collect(self._aggregation.results(groups.keys, totals))


WORTHWHILE_RATIO = 0.5
"""Grouping pays if it leaves at most this share of the rows."""

BATCHES_BETWEEN_PROBES = 31


class LocalAggregate(Operator):
    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._ungrouped_batches_left = 0

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._aggregation.partial_schema

    def emits_changes(self, inputs: list[bool]) -> bool:
        return False if self._aggregation.of_changes else refuse_changelogs(inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self._ungrouped_batches_left:
            self._ungrouped_batches_left -= 1
            if self.context.lineage is not None:
                self.context.lineage.descend_from(np.arange(batch.num_rows))
            self.context.collect(self._one_per_record(batch))
        else:
            self.context.collect(self._one_per_key(batch))

    def _one_per_record(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = batch.select(self._aggregation.key_names)
        return self._aggregation.partials(keys, self._aggregation.lift(batch))

    def _one_per_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = group(batch, self._aggregation.key_names)
        if groups.count > batch.num_rows * WORTHWHILE_RATIO:
            self._ungrouped_batches_left = BATCHES_BETWEEN_PROBES
        reduced = self._aggregation.reduce(self._aggregation.lift(batch), groups)
        return self._aggregation.partials(groups.keys, reduced)
