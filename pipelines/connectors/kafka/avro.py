"""Records in Avro: the mapping of fields to columns and back, and the conversion of records.

The bytes of a record do not say where a field is, so the schema that wrote them has to be known:
either one schema for all records, or one for each record, by its id in a schema registry. A batch
is decoded in groups of the same schema.

Columns are found by the names of the fields, and a column has to take its field's type without
loss. A field that no column wants is skipped; a column without a field is null. A schema that does
not fit the columns is refused by the names of its record and field.

Source: Avro 1.12, "Schema Resolution"; an enum may be read as text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry.schema_registry_client import Schema
from fastavro._read_common import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from pipelines.connectors.kafka.registry import (
    OpenRegistry,
    SchemaRegistry,
    Unframed,
    UnknownSchema,
    header_of,
    unframed,
)
from pipelines.connectors.kafka.values import Decoded, Fetched
from pipelines.connectors.source import UnreadableText
from pipelines.domain.errors import Rejected

AvroType: TypeAlias = Any
"""A type in its JSON form: a name, a list (a union), or an object."""

PLAIN: Mapping[str, tuple[pa.DataType, ...]] = {
    "boolean": (pa.bool_(),),
    "int": (pa.int32(), pa.int64(), pa.float64()),
    "long": (pa.int64(),),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "string": (pa.string(), pa.large_string()),
    "enum": (pa.string(), pa.large_string()),
    "bytes": (pa.binary(), pa.large_binary()),
    "fixed": (pa.binary(), pa.large_binary()),
}
UNITS = {"timestamp-millis": "ms", "timestamp-micros": "us"}
FINER = ["s", "ms", "us", "ns"]
LOCAL = "local-"
NULL = "null"
WRITTEN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


class UnreadableSchema(Exception):
    """The schema does not fit the columns; the message says why, in a clause."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Makes a column of the values of its field. `unit`: the unit of a time; None: no time."""

    column: pa.Field
    unit: str | None = None

    def array_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
        """Raises ArrowException and OverflowError for a value that the column cannot hold."""
        type_, name = self.column.type, self.column.name
        values = [row.get(name) for row in rows]
        if self.unit is None:
            return pa.array(values, type_)
        if pa.types.is_date(type_):
            return pa.array(values, pa.int32()).cast(type_)
        times = pa.array(values, pa.int64()).cast(pa.timestamp(self.unit, type_.tz))
        return times.cast(type_, safe=FINER.index(type_.unit) >= FINER.index(self.unit))

    def values_of(self, array: pa.Array) -> list[Any]:
        """Returns the values of the field, for a writer."""
        if self.unit is None:
            return list(array.to_pylist())
        if pa.types.is_date(self.column.type):
            return list(array.cast(pa.int32()).to_pylist())
        time = pa.timestamp(self.unit, self.column.type.tz)
        return list(array.cast(time, safe=False).cast(pa.int64()).to_pylist())


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How to read the records of one schema.

    `writer` is the schema of the bytes, `reader` its fields that a column wants, both parsed. A
    `reader` of None means all fields.
    """

    writer: AvroType
    reader: AvroType | None
    columns: tuple[ColumnPlan, ...]


def read_plan(text: str, columns: pa.Schema, referred: Sequence[str] = ()) -> ReadPlan:
    """`referred`: the schemas that this one refers to, each after those that it needs itself.

    Raises UnreadableSchema.
    """
    named: dict[str, Any] = {}
    try:
        for each in referred:
            fastavro.parse_schema(json.loads(each), named)
        types = dict(named)
        record: Any = fastavro.parse_schema(json.loads(text), types)  # names are full now
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise UnreadableSchema(f"it is no Avro schema ({type(error).__name__})") from error
    if not isinstance(record, dict) or record.get("type") != "record":
        raise UnreadableSchema("it is no record")
    record = {name: part for name, part in record.items() if not name.startswith("__")}
    fields = {field["name"]: field["type"] for field in record["fields"]}
    shown = record["name"].rpartition(".")[2]
    if not any(name in fields for name in columns.names):
        raise UnreadableSchema(f"the record {shown} has none of the columns")
    for each in fields.values():
        _check_is_bounded(each)
    plans = tuple(_plan(shown, fields, column, types) for column in columns)
    writer = {**record, "fields": [_without_meaning(field) for field in record["fields"]]}
    wanted = [field for field in writer["fields"] if field["name"] in columns.names]
    is_whole = len(wanted) == len(writer["fields"])
    reader = None if is_whole else {**writer, "fields": wanted}
    return ReadPlan(
        fastavro.parse_schema(writer, dict(named)),
        None if reader is None else fastavro.parse_schema(reader, dict(named)),
        plans,
    )


def _plan(
    record: str, fields: Mapping[str, AvroType], column: pa.Field, types: Mapping[str, Any]
) -> ColumnPlan:
    """Raises UnreadableSchema."""
    if column.name not in fields:
        if not column.nullable:
            raise UnreadableSchema(f"the record {record} has no field {column.name}")
        return ColumnPlan(column)
    written = fields[column.name]
    branches = [each for each in _branches(written) if each != NULL]
    if len(branches) < len(_branches(written)) and not column.nullable:
        raise UnreadableSchema(f"field {record}.{column.name} may be null, its column may not")
    for branch in branches:
        if not fits(branch, column.type, types):
            raise UnreadableSchema(
                f"field {record}.{column.name} of type {_shown(branch)} does not go into a column"
                f" of type {column.type}"
            )
    units = {_unit(branch) for branch in branches}
    if len(units) > 1:
        raise UnreadableSchema(f"field {record}.{column.name} has times in several units")
    return ColumnPlan(column, *units)


def _check_is_bounded(written: AvroType) -> None:
    """Raises UnreadableSchema for an array whose elements take no bytes.

    A few bytes could claim so many of them that reading would not end.
    """
    for each in _branches(written):
        if not isinstance(each, dict):
            continue
        items = each.get("items")
        if items == NULL or (isinstance(items, dict) and not items.get("fields", [NULL])):
            raise UnreadableSchema("it has an array whose elements take no bytes")
        for inner in [each.get("items"), each.get("values"), *_types_within(each)]:
            _check_is_bounded(inner)


def _types_within(written: Mapping[str, Any]) -> list[AvroType]:
    return [field["type"] for field in written.get("fields", [])]


def fits(written: AvroType, type_: pa.DataType, types: Mapping[str, Any]) -> bool:
    """Returns True if a column of that type takes every value of an Avro type (not a union)."""
    if isinstance(written, str) and written in types:
        written = types[written]
    kind = written if isinstance(written, str) else written.get("type")
    logical = None if isinstance(written, str) else written.get("logicalType")
    if logical is not None and logical.removeprefix(LOCAL) in UNITS:
        return bool(
            pa.types.is_timestamp(type_) and (type_.tz is None) == logical.startswith(LOCAL)
        )
    if logical == "date":
        return bool(pa.types.is_date32(type_))
    if logical == "decimal":
        return bool(
            pa.types.is_decimal(type_)
            and type_.scale >= written.get("scale", 0)
            and type_.precision - type_.scale >= written["precision"] - written.get("scale", 0)
        )
    if kind == "array" and pa.types.is_list(type_):
        return _fits_all(written["items"], type_.value_type, types)
    if kind == "record" and pa.types.is_struct(type_):
        fields = {field["name"]: field["type"] for field in written["fields"]}
        return all(
            field.name not in fields or _fits_all(fields[field.name], field.type, types)
            for field in type_
        )
    return type_ in PLAIN.get(str(kind), ()) and logical in (None, "uuid")


def _fits_all(written: AvroType, type_: pa.DataType, types: Mapping[str, Any]) -> bool:
    return all(each == NULL or fits(each, type_, types) for each in _branches(written))


def _branches(written: AvroType) -> list[AvroType]:
    return written if isinstance(written, list) else [written]


def _unit(written: AvroType) -> str | None:
    if not isinstance(written, dict):
        return None
    logical = str(written.get("logicalType", "")).removeprefix(LOCAL)
    return UNITS.get(logical, "day" if logical == "date" else None)


def _without_meaning(field: Mapping[str, Any]) -> dict[str, Any]:
    """Reads times as numbers and UUIDs as text, because these become a column in one step."""
    branches = [
        {"type": each["type"]} if _is_simple(each) else each for each in _branches(field["type"])
    ]
    return {**field, "type": branches if isinstance(field["type"], list) else branches[0]}


def _is_simple(written: AvroType) -> bool:
    if not isinstance(written, dict) or written.get("type") not in ("int", "long", "string"):
        return False
    return "logicalType" in written


def _shown(written: AvroType) -> str:
    if isinstance(written, str):
        return written
    return str(written.get("logicalType") or written.get("name") or written.get("type"))


def schema_of_columns(columns: pa.Schema, name: str) -> dict[str, Any]:
    """Returns an Avro record of these columns; nullable fields have null as their default.

    Raises UnreadableSchema for a column that has no Avro type.
    """
    return {
        "type": "record",
        "name": name,
        "fields": [_field(column, f"{name}_{column.name}") for column in columns],
    }


def _field(column: pa.Field, name: str) -> dict[str, Any]:
    written = _written(column.type, name, column.name)
    if not column.nullable:
        return {"name": column.name, "type": written}
    return {"name": column.name, "type": [NULL, written], "default": None}


def _written(type_: pa.DataType, name: str, column: str) -> AvroType:
    if type_ in WRITTEN:
        return WRITTEN[type_]
    if pa.types.is_timestamp(type_) and type_.unit in ("ms", "us"):
        prefix = LOCAL if type_.tz is None else ""
        logical = {unit: logical for logical, unit in UNITS.items()}[type_.unit]
        return {"type": "long", "logicalType": f"{prefix}{logical}"}
    if pa.types.is_decimal128(type_):
        digits = {"precision": type_.precision, "scale": type_.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_list(type_):
        return {"type": "array", "items": [NULL, _written(type_.value_type, name, column)]}
    if pa.types.is_struct(type_):
        fields = [_field(field, f"{name}_{field.name}") for field in type_]
        return {"type": "record", "name": name, "fields": fields}
    raise UnreadableSchema(f"column {column} of type {type_} has no Avro type")


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
"""The errors that fastavro raises for bytes that were not written with the schema."""

PLAIN_ID = 0
"""The id of the one schema of all records if there is no registry."""


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Each value is an Avro record. A record without a value is a deletion, and is left out.

    For a source and for a sink. A source finds columns by the names of the fields: a missing field
    is null, other fields are skipped. A schema that does not fit the columns is refused.

    Args:
        schema: the columns.
        avro_schema: the schema as JSON text. For a source, the one that wrote all records; for a
            sink, the one to write. None: it is derived from the columns.
        registry: the registry, if each record begins with the id of its schema. A sink registers
            its schema there.
        name: the name of the record in a schema that is derived from the columns.
        subject: where a sink registers its schema; None: `TOPIC-value`.

    Raises Rejected if `avro_schema` does not fit the columns.
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
        """1. Split off the ids. 2. Decode the records of each schema. 3. Restore their order."""
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
        """Returns the plan, or a text that says why no record of that schema can be decoded."""
        if schema_id not in self._plans and self._registry is not None:
            try:
                self._plans[schema_id] = self._plan_of(self._registry, schema_id)
            except UnreadableSchema as error:
                self._plans[schema_id] = f"the schema {schema_id} that wrote it is refused: {error}"
            except UnknownSchema as error:
                return str(error)  # it may be registered later
        return self._plans[schema_id]

    def _plan_of(self, registry: OpenRegistry, schema_id: int) -> ReadPlan:
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
    """Decodes one record. Raises one of MALFORMED."""
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
    """Returns the texts of the schemas that it refers to, each after those that it needs itself.

    Raises UnknownSchema.
    """
    texts: list[str] = []
    for reference in schema.references or []:
        other = registry.version(reference.subject, reference.version)
        texts += [text for text in referred_by(registry, other) if text not in texts]
        if other.schema_str is not None and other.schema_str not in texts:
            texts.append(other.schema_str)
    return texts
