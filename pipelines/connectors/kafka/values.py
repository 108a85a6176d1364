"""Records of a partition as columns, and the contract of the formats that decode their values.

The formats without a schema of their own, JSON and raw bytes, are here too.

A format is an immutable description. It opens a decoder, which belongs to one reader and decodes a
whole batch into columns. If the decoder cannot decode a record, it says what is wrong with it; the
reader decides what happens to that record.

Python's garbage collector inspects a message again and again for as long as it lives, which costs
more than fetching it; it does not inspect bytes and numbers. So the client's messages are turned
into columns as soon as they arrive.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from pipelines.connectors.json_rows import MalformedLine, decode_each_line, decode_lines
from pipelines.connectors.source import Offsets, UnreadableText
from pipelines.domain.errors import Rejected, check

Blobs = list[bytes | None]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records in the order of their offsets.

    `times_ms`: -1 if Kafka keeps no time. `bytes`: the size of keys and values.
    """

    offsets: Offsets
    keys: Blobs
    values: Blobs
    times_ms: npt.NDArray[np.int64]
    bytes: int

    def __len__(self) -> int:
        return len(self.values)

    def divided(self, row: int) -> tuple["Fetched", "Fetched"]:
        """Returns the records before that row, and those from that row on."""
        if row == len(self):
            return self, NOTHING
        return self._slice(0, row), self._slice(row, len(self))

    def fitting_count(self, rows: int, bytes_: int) -> int:
        """How many of the first `rows` to take, up to the one with which they reach `bytes_`."""
        if self.bytes <= bytes_:  # looks at single sizes only where they matter
            return min(len(self), rows)
        totals = accumulate(map(_size, islice(self.keys, rows), self.values))
        fitting = (count for count, total in enumerate(totals, 1) if total >= bytes_)
        return next(fitting, min(len(self), rows))

    def with_values(self) -> "Fetched":
        """Leaves out the records that are deletions."""
        if None not in self.values:
            return self
        rows = np.array([row for row, value in enumerate(self.values) if value is not None], int)
        return Fetched(
            self.offsets[rows],
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            self.times_ms[rows],
            self.bytes,
        )

    def _slice(self, start: int, stop: int) -> "Fetched":
        keys, values = self.keys[start:stop], self.values[start:stop]
        size = sum(map(_size, keys, values))
        return Fetched(self.offsets[start:stop], keys, values, self.times_ms[start:stop], size)


NOTHING = Fetched(np.empty(0, np.int64), [], [], np.empty(0, np.int64), 0)


def fetched_of(messages: Sequence[Message]) -> Fetched:
    """`messages` contains no errors."""
    offsets = list(map(Message.offset, messages))
    check(None not in offsets, "what was consumed has an offset")
    keys = list(map(Message.key, messages))
    return Fetched(
        np.array(offsets, np.int64),
        keys,
        list(map(Message.value, messages)),
        np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages)),
        sum(map(len, messages)) + sum(len(key) for key in keys if key is not None),
    )


def joined(parts: Sequence[Fetched]) -> Fetched:
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return Fetched(
        np.concatenate([part.offsets for part in parts]),
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        np.concatenate([part.times_ms for part in parts]),
        sum(part.bytes for part in parts),
    )


def by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, Fetched]]:
    """Groups successive messages by `<topic>-<partition>`; usually there is only one group."""
    if len(set(map(Message.partition, messages))) == len(set(map(Message.topic, messages))) == 1:
        yield place_of(messages[0]), fetched_of(messages)
        return
    for name, of_one in groupby(messages, key=place_of):
        yield name, fetched_of(list(of_one))


def place_of(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}"


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


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
        """Leaves out what this format does not count as a record, such as a deletion."""
        ...

    def open(self) -> Decoder: ...

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """See `ReadsText`. Raises UnreadableText."""
        ...


class Encoder(Protocol):
    """Belongs to one writer, and to the thread of its subtask."""

    def encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encodes each row as a value. Raises Rejected for a row that does not fit.

        Raises Retryable if a server that it has to ask does not answer.
        """
        ...


class RowFormat(Protocol):
    """The form in which a sink writes rows. Immutable; building it contacts no server."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it takes."""
        ...

    def encoder(self, topic: str) -> Encoder:
        """Contacts no server until the first batch."""
        ...

    def check_target(self, topic: str) -> None:
        """Asks a registry if it would accept the schema. Raises Rejected, Retryable."""
        ...


def check_columns(format: RowFormat, schema: pa.Schema, topic: str) -> None:
    """Raises Rejected naming the first column that differs from the format's."""
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

    Columns are found by the names of the fields. A missing field is null, and other fields are left
    out. Times are ISO 8601 with an offset, or Z.

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
    """Key and value unchanged, and the time that Kafka keeps with a record, or null.

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
        """Returns the value alone: a quarantine keeps no more of a record that was not read."""
        values = {"key": None, "value": text.encode(), "at": None}
        return pa.RecordBatch.from_pylist([values], schema=self.schema)
