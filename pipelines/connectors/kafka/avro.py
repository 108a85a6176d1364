"""Records in Avro: columns of their fields, and records of columns.

The bytes of a record do not say where a field is, so the schema that wrote them has to be known:
one for all records, or one for each by the id of a schema registry. A batch is decoded in groups of
the same schema. `avro_columns` says which schema goes with which columns.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry.schema_registry_client import Schema
from fastavro._read_common import SchemaResolutionError

from pipelines.connectors.kafka.avro_columns import (
    ReadPlan,
    UnreadableSchema,
    read_plan,
    schema_of_columns,
)
from pipelines.connectors.kafka.fetched import Fetched
from pipelines.connectors.kafka.registry import (
    OpenRegistry,
    SchemaRegistry,
    Unframed,
    UnknownSchema,
    header_of,
    unframed,
)
from pipelines.connectors.kafka.values import Decoded
from pipelines.connectors.source import UnreadableText
from pipelines.domain.errors import Rejected

MALFORMED = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    SchemaResolutionError,
)
"""What fastavro raises for bytes that the schema did not write."""

PLAIN_ID = 0
"""Stands for the schema of all records where there is no registry."""


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Each value is an Avro record. A record without a value is a deletion, and is left out.

    For a source and for a sink. A source finds columns by the names of the fields: a missing field
    is null, further fields are skipped. A schema that does not go with the columns is refused.

    Args:
        schema: the columns.
        avro_schema: the schema as JSON text. For a source, the one that wrote all records; for a
            sink, the one to write. None: it follows from the columns.
        registry: each record begins with the id of its schema. A sink registers its schema there.
        name: the name of the record in a schema that follows from the columns.
        subject: where a sink registers its schema; None: `TOPIC-value`.

    Raises Rejected when `avro_schema` does not go with the columns.
    """

    schema: pa.Schema
    avro_schema: str | None = None
    registry: SchemaRegistry | None = None
    name: str = "Row"
    subject: str | None = None

    def __post_init__(self) -> None:
        try:
            read_plan(self.written_schema, self.schema)
        except UnreadableSchema as error:
            raise Rejected(f"The Avro schema does not go with the columns: {error}.") from error

    @property
    def written_schema(self) -> str:
        if self.avro_schema is not None:
            return self.avro_schema
        return json.dumps(schema_of_columns(self.schema, self.name))

    def open(self) -> "AvroDecoder":
        return AvroDecoder(self)

    def encoder(self, topic: str) -> "AvroEncoder":
        return AvroEncoder(self, self.subject or f"{topic}-value")

    def check_target(self, topic: str) -> None:
        if self.registry is not None:
            subject = self.subject or f"{topic}-value"
            self.registry.open().check_takes(subject, Schema(self.written_schema, "AVRO"))

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched.with_values()

    def row_of_text(self, text: str) -> pa.RecordBatch:
        raise UnreadableText(
            "a quarantine keeps text, and Avro is bytes; keep dead letters to have them again"
        )


class AvroDecoder:
    """Asks the registry once for each schema."""

    def __init__(self, format: AvroValues) -> None:
        self._columns = format.schema
        self._registry = None if format.registry is None else format.registry.open()
        self._plans: dict[int, ReadPlan | str] = {}
        if self._registry is None:
            self._plans[PLAIN_ID] = read_plan(format.written_schema, format.schema)

    def decoded(self, fetched: Fetched) -> Decoded:
        """1. Split off the ids. 2. Decode the records of each schema. 3. Bring the rows back into
        the order of the records."""
        problems: dict[int, str] = {}
        by_schema: dict[int, list[tuple[int, bytes]]] = {}
        for number, value in enumerate(fetched.values):
            try:
                schema_id, record = self._unframed(value or b"")
            except Unframed as error:
                problems[number] = str(error)
            else:
                by_schema.setdefault(schema_id, []).append((number, record))
        numbers: list[int] = []
        parts: list[pa.RecordBatch] = []
        for schema_id, records in by_schema.items():
            plan = self._plan(schema_id)
            if isinstance(plan, str):
                problems |= dict.fromkeys((number for number, _ in records), plan)
            else:
                parts.append(self._rows(plan, records, numbers, problems))
        return Decoded.of(self._in_order(parts, numbers), problems)

    def _unframed(self, value: bytes) -> tuple[int, bytes]:
        return (PLAIN_ID, value) if self._registry is None else unframed(value)

    def _in_order(self, parts: Sequence[pa.RecordBatch], numbers: Sequence[int]) -> pa.RecordBatch:
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self._columns)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_batches(parts).take(pa.array(np.argsort(np.array(numbers))))

    def _plan(self, schema_id: int) -> ReadPlan | str:
        """A text: why no record of that schema can be decoded."""
        if schema_id not in self._plans and self._registry is not None:
            try:
                self._plans[schema_id] = self._asked_plan(self._registry, schema_id)
            except UnreadableSchema as error:
                self._plans[schema_id] = f"the schema {schema_id} that wrote it is refused: {error}"
            except UnknownSchema as error:
                return str(error)  # it may be registered later
        return self._plans[schema_id]

    def _asked_plan(self, registry: OpenRegistry, schema_id: int) -> ReadPlan:
        """Raises UnreadableSchema, UnknownSchema."""
        schema = registry.schema(schema_id)
        if schema.schema_type != "AVRO":
            raise UnreadableSchema(f"it is a schema of {schema.schema_type}, not of Avro")
        return read_plan(schema.schema_str or "", self._columns, referred_by(registry, schema))

    def _rows(
        self,
        plan: ReadPlan,
        records: Sequence[tuple[int, bytes]],
        numbers: list[int],
        problems: dict[int, str],
    ) -> pa.RecordBatch:
        """Adds the numbers of its rows to `numbers`, and those of other records to `problems`."""
        rows: list[dict[str, Any]] = []
        found: list[int] = []
        for number, record in records:
            try:
                rows.append(_row(plan, record))
            except MALFORMED as error:
                problems[number] = f"it does not fit its Avro schema ({_reason(error)})"
            else:
                found.append(number)
        try:
            batch = self._batch(plan, rows)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            is_fit = [self._problem(plan, row) for row in rows]
            problems |= {n: why for n, why in zip(found, is_fit, strict=True) if why is not None}
            rows = [row for row, why in zip(rows, is_fit, strict=True) if why is None]
            found = [number for number in found if number not in problems]
            batch = self._batch(plan, rows)
        numbers += found
        return batch

    def _batch(self, plan: ReadPlan, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        arrays = [column.array_of(rows) for column in plan.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)

    def _problem(self, plan: ReadPlan, row: dict[str, Any]) -> str | None:
        for column in plan.columns:
            try:
                column.array_of([row])
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                return f"field {column.column.name} does not fit its column ({_reason(error)})"
        return None


class AvroEncoder:
    """Registers its schema with the first batch."""

    def __init__(self, format: AvroValues, subject: str) -> None:
        self._format = format
        self._subject = subject
        self._plan = read_plan(format.written_schema, format.schema)
        self._header: bytes | None = b"" if format.registry is None else None

    def encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        header = self._header_to_write()
        columns = [plan.values_of(batch.column(plan.column.name)) for plan in self._plan.columns]
        names = self._format.schema.names
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        return [self._record(header, row) for row in rows]

    def _header_to_write(self) -> bytes:
        if self._header is None and self._format.registry is not None:
            schema = Schema(self._format.written_schema, "AVRO")
            self._header = header_of(self._format.registry.open().register(self._subject, schema))
        return self._header or b""

    def _record(self, header: bytes, row: dict[str, Any]) -> bytes:
        record = BytesIO(header)
        record.seek(len(header))
        try:
            fastavro.schemaless_writer(record, self._plan.writer, row)
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise Rejected(
                f"A row does not fit the Avro schema of subject {self._subject}:"
                f" {_reason(error)}. Change the schema, or the rows in front of the sink."
            ) from error
        return record.getvalue()


def _row(plan: ReadPlan, record: bytes) -> dict[str, Any]:
    """Raises one of MALFORMED."""
    source = BytesIO(record)
    row: Any = fastavro.schemaless_reader(source, plan.writer, plan.reader)
    left = len(record) - source.tell()
    if left:
        raise ValueError(f"{left} bytes are left over")
    return dict(row) if not isinstance(row, dict) else row


def _reason(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0][:200].rstrip(".")
    return first or type(error).__name__


def referred_by(registry: OpenRegistry, schema: Any) -> list[str]:
    """The texts of the schemas that it refers to, each behind those that it needs itself.

    Raises UnknownSchema.
    """
    texts: list[str] = []
    for reference in schema.references or []:
        other = registry.version(reference.subject, reference.version)
        texts += [text for text in referred_by(registry, other) if text not in texts]
        if other.schema_str is not None and other.schema_str not in texts:
            texts.append(other.schema_str)
    return texts
