"""Converts between one array of values and the columns of a table; a struct has one per field."""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.backend import Rows, Table


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """`schema` holds the columns of one value, in order."""

    state: str
    type: pa.DataType
    schema: pa.Schema

    @classmethod
    def of(cls, state: str, type_: pa.DataType) -> "ValueLayout":
        if not pa.types.is_struct(type_):
            return cls(state, type_, pa.schema([(state, type_)]))
        if not type_.num_fields:
            raise Rejected(f"State '{state}': a struct without fields holds nothing.")
        return cls(state, type_, pa.schema(list(type_)))

    def read(self, table: Table, rows: Rows) -> pa.Array:
        columns = [table.read_arrow(name, rows) for name in self.schema.names]
        if not pa.types.is_struct(self.type):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))

    def write(self, table: Table, rows: Rows, values: pa.Array) -> None:
        for name, column in zip(self.schema.names, self.columns(values), strict=True):
            table.write_arrow(name, rows, column)

    def columns(self, values: pa.Array) -> list[pa.Array]:
        """Raises Rejected if the type of the values is not the declared one."""
        if values.type != self.type:
            raise Rejected(
                f"The state {self.state!r} holds {self.type}; it was given {values.type}."
            )
        if not pa.types.is_struct(self.type):
            return [values]
        if values.null_count:
            raise Rejected(f"The state {self.state!r} was given a null; its fields may be null.")
        columns: list[pa.Array] = values.flatten()
        return columns
