"""The columns of a CSV line, and which of them are read.

Owns Arrow's conversion options. Columns of the schema are converted to their types. Where quotes
mean that a line need not be a record, all other columns are converted to bytes, so that a line
break in any of them is noticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.domain.errors import Rejected


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """`columns` name a line's values in their order; those that `schema` lacks are not read."""

    schema: pa.Schema
    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema, columns: Sequence[str] | None) -> "CsvLayout":
        """`columns` None: a line holds the columns of `schema`. Raises Rejected."""
        names = tuple(schema.names if columns is None else columns)
        absent = sorted(set(schema.names) - set(names))
        twice = sorted({name for name in names if names.count(name) > 1})
        if absent:
            raise Rejected(
                f"Column {absent[0]} of the schema is not among the file's: {', '.join(names)}."
            )
        if twice:
            raise Rejected(f"A file cannot have two columns of the name {twice[0]}; rename one.")
        return cls(schema, names)

    def conversion(self, *, of_all: bool) -> pacsv.ConvertOptions:
        """Converts the columns of the schema, or with `of_all` every column, for `as_declared`."""
        if not of_all:
            return pacsv.ConvertOptions(column_types=self.schema, include_columns=self.schema.names)
        others = {name: pa.binary() for name in self.columns}
        declared = dict(zip(self.schema.names, self.schema.types, strict=True))
        return pacsv.ConvertOptions(column_types={**others, **declared})

    def as_declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Picks the columns of the schema from a batch of all columns."""
        columns = [batch.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
