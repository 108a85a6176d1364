"""How the fields of an Avro schema become columns, and columns the fields of a schema.

The columns decide what is read: by the names of the fields, with the types that a column can take
without loss. A field that no column wants is skipped; a column without a field is null. A schema
that does not go with the columns is refused, by the names of its record and field.

Reads no bytes. Source: Avro 1.12, "Schema Resolution"; an enum may be read as text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

AvroType: TypeAlias = Any
"""A type as JSON has it: a name, a list (a union), or an object."""

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
    """It does not go with the columns; the message says why, in a clause."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one column is made of the values of its field. `unit`: of a time; None: it is none."""

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
        """The values of the field, for a writer."""
        if self.unit is None:
            return list(array.to_pylist())
        if pa.types.is_date(self.column.type):
            return list(array.cast(pa.int32()).to_pylist())
        time = pa.timestamp(self.unit, self.column.type.tz)
        return list(array.cast(time, safe=False).cast(pa.int64()).to_pylist())


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """`writer`: the schema of the bytes, `reader`: the fields of it that a column wants, both
    parsed; None: all of them."""

    writer: AvroType
    reader: AvroType | None
    columns: tuple[ColumnPlan, ...]


def read_plan(text: str, columns: pa.Schema, referred: Sequence[str] = ()) -> ReadPlan:
    """`referred`: the schemas that this one refers to, each behind those that it needs.

    Raises UnreadableSchema.
    """
    named: dict[str, Any] = {}
    try:
        for each in referred:
            fastavro.parse_schema(json.loads(each), named)
        types = dict(named)
        record: Any = fastavro.parse_schema(json.loads(text), types)  # names are whole now
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
    """Elements without bytes could be as many as a few bytes say: reading them would not end.

    Raises UnreadableSchema.
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
    """Whether a column of that type takes every value of an Avro type that is no union."""
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
    """Times are read as numbers and uuids as text, which become a column at once."""
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
    """An Avro record of these columns; what may be null has null as its default.

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
