"""Running totals of a changelog, with minimum, maximum or a count of distinct values.

Sums and counts subtract the rows that are taken back. The others need to know which values are
left, so the operator keeps the values of each key (`counted_values`). Rows come whole: a step
before the exchange could combine sums, but not these.
"""

from collections.abc import Mapping
from typing import TypeGuard

import pyarrow as pa

from pipelines.operators.aggregating.aggregates import Aggregate, Fold
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct, refuse_kind_key
from pipelines.operators.aggregating.count_distinct import CountDistinct
from pipelines.operators.aggregating.counted_values import CountedValues
from pipelines.operators.changelog import signs
from pipelines.operators.columns import field_of, group
from pipelines.operators.operator import Operator, OperatorContext


def needs_values(aggregate: Aggregate) -> TypeGuard[Fold | CountDistinct]:
    """Taking back a row may change its result to a value of an earlier row."""
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
        return {each: CountedValues(self._keys, each, schema) for each in dict.fromkeys(columns)}


def _result_type(aggregate: Fold | CountDistinct, schema: pa.Schema) -> pa.DataType:
    """Raises Rejected naming a column of which there is no least value."""
    return aggregate.bind(schema).output_type if isinstance(aggregate, Fold) else pa.int64()
