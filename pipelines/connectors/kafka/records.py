"""The records that a sink writes to Kafka for a batch: a value and perhaps a key each.

Decides the form of both; the client's `PARTITIONER` decides the partition. Knows no broker.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.json_rows import has_json, json_lines_of
from pipelines.domain.errors import Rejected

PARTITIONER = "murmur2_random"
"""By key as Java's clients do, to agree with other writers; without a key, in turn by batches."""

Blobs = list[bytes | None]


@dataclass(frozen=True, slots=True)
class RecordForm:
    """`value` names a column of text or bytes; None: the whole row, as `json_rows` writes it. `key`
    may also name a column of whole numbers, which become decimal digits."""

    value: str | None = None
    key: str | None = None

    def check(self, schema: pa.Schema, topic: str) -> None:
        """Raises Rejected naming the column that does not fit."""
        if self.value is not None:
            self._check_column(schema, self.value, topic, "value", _is_bytes)
        else:
            _check_json(schema, topic)
        if self.key is not None:
            self._check_column(schema, self.key, topic, "key", _is_key)

    def columns(self, batch: pa.RecordBatch) -> list[Blobs]:
        """The values of the records, and their keys if they have any."""
        values = self._values(batch)
        return [values] if self.key is None else [values, _as_bytes(batch.column(self.key))]

    def _values(self, batch: pa.RecordBatch) -> Blobs:
        if self.value is not None:
            return _as_bytes(batch.column(self.value))
        return list(json_lines_of(pa.Table.from_batches([batch])).split(b"\n")[:-1])

    def _check_column(
        self,
        schema: pa.Schema,
        column: str,
        topic: str,
        role: str,
        fits: Callable[[pa.DataType], bool],
    ) -> None:
        if column not in schema.names:
            raise Rejected(f"The {role} column {column} of topic {topic} is not in the results.")
        type_ = schema.field(column).type
        if not fits(type_):
            wanted = "text or bytes" if role == "value" else "text, bytes or whole numbers"
            raise Rejected(
                f"The {role} column {column} of topic {topic} holds {type_}; Kafka takes {wanted}."
            )


def _check_json(schema: pa.Schema, topic: str) -> None:
    column = next((column for column in schema if not has_json(column.type)), None)
    if column is not None:
        raise Rejected(
            f"Column {column.name} of type {column.type} cannot be written as JSON to topic"
            f" {topic}."
        )


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def _is_key(type_: pa.DataType) -> bool:
    return _is_bytes(type_) or bool(pa.types.is_integer(type_))


def _as_bytes(column: pa.Array) -> Blobs:
    text = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
    found: Blobs = text.cast(pa.binary()).to_pylist()
    return found
