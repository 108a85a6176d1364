"""Side outputs: named outputs of an author's function beside its result, each with its own schema.

Refuses a name or a schema that the function has not declared. Each side output keeps the order of
its rows and batches; their order relative to the result is not defined. The runtime drops a side
output that no stream reads.

Source: Flink's `OutputTag`.
"""

from collections.abc import Mapping

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.operators.columns import check_event_time
from pipelines.operators.operator import Collector, SideCollector, SideOutput
from pipelines.operators.rows import Row, RowOutput


class BatchSides:
    """The side outputs of a function of batches."""

    def __init__(
        self, uid: Uid, declared: Mapping[str, SideOutput], collect: SideCollector
    ) -> None:
        self._uid = uid
        self._declared = declared
        self._collect = collect

    def output(self, name: str, batch: pa.RecordBatch) -> None:
        """Emits a batch into a side output.

        Raises Rejected unless its name and columns are declared.
        """
        schema = _declared(self._uid, self._declared, name).schema
        if not batch.schema.equals(schema):
            raise Rejected(
                f"The function of {self._uid!r} emitted a batch with the columns"
                f" ({_columns(batch.schema)}) into its side output {name!r}, where it declared"
                f" ({_columns(schema)})."
            )
        if batch.num_rows:
            self._collect(name, batch)


class RowSides:
    """The side outputs of a function of rows."""

    def __init__(
        self, uid: Uid, declared: Mapping[str, SideOutput], collect: SideCollector
    ) -> None:
        self._uid = uid
        self._declared = declared
        self._outputs = {
            name: RowOutput(uid, side.schema, _into(collect, name))
            for name, side in declared.items()
        }

    def output(self, name: str, row: Row) -> None:
        """Emits a row into a side output.

        Raises Rejected unless its name and columns are declared.
        """
        _declared(self._uid, self._declared, name)
        self._outputs[name].add([row])

    def flush(self) -> None:
        """The operator calls this after each batch."""
        for output in self._outputs.values():
            output.flush()


def check_sides(sides: Mapping[str, SideOutput]) -> None:
    """Raises Rejected naming a side output whose event time is not among its columns."""
    for name, side in sides.items():
        if side.time_column is None:
            continue
        try:
            check_event_time(side.schema, side.time_column)
        except Rejected as refusal:
            raise Rejected(f"Its side output {name!r}: {refusal}") from refusal


def _declared(uid: Uid, declared: Mapping[str, SideOutput], name: str) -> SideOutput:
    if name not in declared:
        there_are = ", ".join(map(repr, declared)) or "none"
        raise Rejected(f"{uid!r} has no side output {name!r}; it declares {there_are}.")
    return declared[name]


def _into(collect: SideCollector, name: str) -> Collector:
    return lambda batch: collect(name, batch)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
