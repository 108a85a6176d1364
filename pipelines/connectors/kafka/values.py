"""What a record's value becomes: the contract of a format, and the formats without a schema of
their own, JSON and raw bytes.

A format is an immutable description. It opens a decoder, which belongs to one reader and decodes a
whole batch into columns. The decoder says of each record that it cannot decode what is wrong with
it; the reader decides what happens to that record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.json_rows import MalformedLine, decode_each_line, decode_lines
from pipelines.connectors.kafka.fetched import Fetched
from pipelines.connectors.source import UnreadableText
from pipelines.domain.errors import Rejected

NO_TIME = -1
RAW = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("at", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True, slots=True)
class Malformed:
    """`problem` is a clause about the value."""

    problem: str

    def sentence(self, place: str) -> str:
        return f"The record at {place} is malformed: {self.problem}."


@dataclass(frozen=True, slots=True)
class Untimed:
    column: str

    def sentence(self, place: str) -> str:
        return f"The record at {place} has no {self.column}: no event time."


@dataclass(frozen=True, slots=True)
class Decoded:
    """`rows` holds the records that were decoded, in order; `problems` says for each other record,
    by its number among all, what is wrong with it."""

    rows: pa.RecordBatch
    problems: Mapping[int, Malformed | Untimed] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pa.RecordBatch, problems: Mapping[int, str]) -> "Decoded":
        return cls(rows, {row: Malformed(problem) for row, problem in problems.items()})

    def with_event_time(self, column: str | None) -> "Decoded":
        """A record without event time counts as one that cannot be decoded."""
        if column is None or self.rows.column(column).null_count == 0:
            return self
        is_timed = self.rows.column(column).is_valid()
        total = self.rows.num_rows + len(self.problems)
        numbers = np.setdiff1d(np.arange(total), list(self.problems))
        untimed = numbers[~is_timed.to_numpy(zero_copy_only=False)]
        return Decoded(
            self.rows.filter(is_timed),
            {**self.problems, **{int(row): Untimed(column) for row in untimed}},
        )


class Decoder(Protocol):
    """Belongs to one reader, and to the thread of its subtask."""

    def decoded(self, fetched: Fetched) -> Decoded:
        """Raises Retryable if a server that it has to ask does not answer."""
        ...


class ValueFormat(Protocol):
    """Immutable description; safe to build in every process. Building it contacts no server."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the source."""
        ...

    def records_among(self, fetched: Fetched) -> Fetched:
        """Without the records that are none to this format."""
        ...

    def open(self) -> Decoder: ...

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """See `ReadsText`. Raises UnreadableText."""
        ...


class Encoder(Protocol):
    """Belongs to one writer, and to the thread of its subtask."""

    def encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        """A value for each row. Raises Rejected for a row that does not fit, and Retryable if a
        server that it has to ask does not answer."""
        ...


class RowFormat(Protocol):
    """What a sink makes of its rows. Immutable; building it contacts no server."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it takes."""
        ...

    def encoder(self, topic: str) -> Encoder:
        """Contacts no server until the first batch."""
        ...

    def check_target(self, topic: str) -> None:
        """Asks a registry if it would take the schema. Raises Rejected, Retryable."""
        ...


def check_columns(format: RowFormat, schema: pa.Schema, topic: str) -> None:
    """Raises Rejected naming the first column that is another one than the format's."""
    for column in schema:
        index = format.schema.get_field_index(column.name)
        wanted = None if index < 0 else format.schema.field(index).type
        if wanted != column.type:
            raise Rejected(
                f"Column {column.name} of type {column.type} is not a column of the format of topic"
                f" {topic}."
                if wanted is None
                else f"Column {column.name} of type {column.type} is of type {wanted} in the format"
                f" of topic {topic}."
            )
    missing = [name for name in format.schema.names if name not in schema.names]
    if missing:
        raise Rejected(f"The column {missing[0]} of topic {topic} is not in the results.")


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Each value is a JSON object. A record without a value is a deletion, and is left out.

    Columns are found by the names of the fields. A missing field is null, and further fields are
    left out. Times are ISO 8601 with an offset, or Z.

    Args:
        schema: the columns.
    """

    schema: pa.Schema

    def open(self) -> "JsonValues":
        return self

    def decoded(self, fetched: Fetched) -> Decoded:
        values = [value or b"" for value in fetched.values]
        return Decoded.of(*decode_each_line(values, self.schema))

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched.with_values()

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """Raises UnreadableText."""
        try:
            return decode_lines([text.encode()], self.schema)
        except MalformedLine as error:
            raise UnreadableText(str(error)) from error


@dataclass(frozen=True, slots=True)
class RawValues:
    """Key and value unchanged, and the time that Kafka keeps with a record, null without one.

    The columns are `key` and `value`, of bytes, and `at`.

    Args:
        schema: the columns `key`, `value` and `at`; leave it as it is.
    """

    schema: pa.Schema = RAW

    def open(self) -> "RawValues":
        return self

    def decoded(self, fetched: Fetched) -> Decoded:
        at, has_none = self.schema.field("at").type, fetched.times_ms == NO_TIME
        columns = [
            pa.array(fetched.keys, pa.binary()),
            pa.array(fetched.values, pa.binary()),
            pa.array(fetched.times_ms, at, mask=has_none),
        ]
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """A value alone: a quarantine has no more of a record that could not be read."""
        values = {"key": None, "value": text.encode(), "at": None}
        return pa.RecordBatch.from_pylist([values], schema=self.schema)
