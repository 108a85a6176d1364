"""Records in Protobuf: converts the fields of messages to columns, and rows to messages.

The message is a class that protoc has generated. Fields are found by their numbers, so a writer may
use another version of it. With a schema registry, the writer's version is compared by field number,
if the registry gives it as a descriptor. Maps and groups have no column.

Source: Confluent's wire format: the indexes of the message in its file follow the schema's id.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry.schema_registry_client import Schema
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError, EncodeError, Message

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

TIMESTAMP = "google.protobuf.Timestamp"
WELL_KNOWN = "google/protobuf/"
DIGITS = {"s": 0, "ms": 3, "us": 6}
NANO_DIGITS = 9
F = FieldDescriptor
TAKES: dict[int, tuple[pa.DataType, ...]] = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), (pa.int32(), pa.int64())),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), (pa.uint32(), pa.int64())),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), (pa.int64(),)),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), (pa.uint64(),)),
    F.TYPE_FLOAT: (pa.float32(), pa.float64()),
    F.TYPE_DOUBLE: (pa.float64(),),
    F.TYPE_BOOL: (pa.bool_(),),
    F.TYPE_STRING: (pa.string(), pa.large_string()),
    F.TYPE_BYTES: (pa.binary(), pa.large_binary()),
    F.TYPE_ENUM: (pa.string(), pa.int32()),
}
ALIKE = (  # can be read as each other, says Protobuf's documentation
    {F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_ENUM},
    {F.TYPE_SINT32, F.TYPE_SINT64},
    {F.TYPE_FIXED32, F.TYPE_SFIXED32},
    {F.TYPE_FIXED64, F.TYPE_SFIXED64},
    {F.TYPE_STRING, F.TYPE_BYTES},
)
INDEXES_MAX = 32
VARINT_BYTES_MAX = 5

Read = Callable[[Any], Any]
"""Converts the value of a field to the value of a column."""


class UnfitField(Exception):
    """A field does not fit a column or the writer's field; the message says why, in a clause."""


@dataclass(frozen=True, slots=True)
class FieldColumn:
    field: FieldDescriptor
    read: Read

    def value_of(self, message: Message) -> Any:
        name = self.field.name
        if self.field.has_presence and not message.HasField(name):
            return None
        return self.read(getattr(message, name))


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """Each value is a Protobuf message. A record without a value is a deletion, and is left out.

    For a source and for a sink. An optional field that is not set is null; fields without a column
    are left out. A `google.protobuf.Timestamp` goes into a timestamp column in UTC, an enum into
    text or `int32`, a repeated field into a list, and another message into a struct.

    Args:
        schema: the columns, by the names of the fields.
        message: the class of the message, as protoc generates it.
        registry: the registry, if each record begins with the id of its schema. A sink registers
            its schema there.
        subject: where a sink registers its schema; None: `TOPIC-value`.

    Raises Rejected if a column has no field, or a field of another type.
    """

    schema: pa.Schema
    message: type[Message]
    registry: SchemaRegistry | None = None
    subject: str | None = None
    columns: tuple[FieldColumn, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            columns = columns_of(self.message.DESCRIPTOR, self.schema)
        except UnfitField as error:
            raise Rejected(
                f"The Protobuf message does not go with the columns: {error}."
            ) from error
        object.__setattr__(self, "columns", columns)
        others = [
            each.name
            for each in self.message.DESCRIPTOR.file.dependencies
            if not each.name.startswith(WELL_KNOWN)
        ]
        if self.registry is not None and others:
            raise Rejected(
                f"The file of message {self.message.DESCRIPTOR.full_name} imports {others[0]};"
                " with a schema registry, declare the message in one file."
            )

    def open(self) -> "ProtobufDecoder":
        return ProtobufDecoder(self)

    def encoder(self, topic: str) -> "ProtobufEncoder":
        return ProtobufEncoder(self, self.subject or f"{topic}-value")

    def check_target(self, topic: str) -> None:
        if self.registry is not None:
            self.registry.open().check_takes(self.subject or f"{topic}-value", schema_of(self))

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched.with_values()

    def row_of_text(self, text: str) -> pa.RecordBatch:
        raise UnreadableText(
            "a quarantine keeps text, and Protobuf is bytes; keep dead letters to have them again"
        )


def columns_of(message: Descriptor, schema: pa.Schema) -> tuple[FieldColumn, ...]:
    """Finds the field of each column. Raises UnfitField."""
    return tuple(_column(message, column) for column in schema)


def _column(message: Descriptor, column: pa.Field) -> FieldColumn:
    found = message.fields_by_name.get(column.name)
    if found is None:
        raise UnfitField(f"message {message.name} has no field {column.name}")
    if not found.is_repeated:
        return FieldColumn(found, _reading(found, column.type))
    if not pa.types.is_list(column.type) or _is_map(found):
        raise _unfit(found, column.type)
    read = _reading(found, column.type.value_type)
    return FieldColumn(found, lambda values: [read(value) for value in values])


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reading(field: FieldDescriptor, type_: pa.DataType) -> Read:
    """Returns the conversion of one value. Raises UnfitField."""
    if field.type == F.TYPE_MESSAGE and field.message_type.full_name == TIMESTAMP:
        if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit in DIGITS:
            return _moment_in(DIGITS[type_.unit])
    elif field.type == F.TYPE_MESSAGE and pa.types.is_struct(type_):
        inner = columns_of(field.message_type, pa.schema(list(type_)))
        return lambda message: {each.field.name: each.value_of(message) for each in inner}
    elif type_ in TAKES.get(field.type, ()):
        is_name = field.type == F.TYPE_ENUM and type_ == pa.string()
        return _name_in(field) if is_name else _unchanged
    raise _unfit(field, type_)


def _unfit(field: FieldDescriptor, type_: pa.DataType) -> UnfitField:
    return UnfitField(
        f"field {field.containing_type.name}.{field.name} does not go into a column of type {type_}"
    )


def _unchanged(value: Any) -> Any:
    return value


def _moment_in(digits: int) -> Read:
    return lambda at: at.seconds * 10**digits + at.nanos // 10 ** (NANO_DIGITS - digits)


def _name_in(field: FieldDescriptor) -> Read:
    """A number without a name, which a newer writer may send, is written in digits."""
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    return lambda number: names.get(number, str(number))


class ProtobufDecoder:
    """Asks the registry once for each schema."""

    def __init__(self, format: ProtobufValues) -> None:
        self._format = format
        self._registry = None if format.registry is None else format.registry.open()
        self._refused: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def decoded(self, fetched: Fetched) -> Decoded:
        messages: list[Message] = []
        numbers: list[int] = []
        problems: dict[int, str] = {}
        for number, value in enumerate(fetched.values):
            try:
                messages.append(self._format.message.FromString(self._record(value or b"")))
            except (Unframed, UnfitField, UnknownSchema) as error:
                problems[number] = str(error)
            except DecodeError:
                problems[number] = f"it is no message {self._format.message.DESCRIPTOR.name}"
            else:
                numbers.append(number)
        try:
            return Decoded.of(self._rows(messages), problems)
        except (pa.ArrowException, OverflowError):
            fits = [self._fits(message) for message in messages]
        problems |= {
            number: "a value does not fit its column"
            for number, is_fit in zip(numbers, fits, strict=True)
            if not is_fit
        }
        fitting = [message for message, is_fit in zip(messages, fits, strict=True) if is_fit]
        return Decoded.of(self._rows(fitting), problems)

    def _record(self, value: bytes) -> bytes:
        """Returns the bytes of the message. Raises Unframed, UnfitField, UnknownSchema."""
        if self._registry is None:
            return value
        schema_id, rest = unframed(value)
        indexes, record = without_indexes(rest)
        place = (schema_id, indexes)
        if place not in self._refused:
            self._refused[place] = self._refusal(self._registry, schema_id, indexes)
        refusal = self._refused[place]
        if refusal is not None:
            raise UnfitField(f"the schema {schema_id} that wrote it is refused: {refusal}")
        return record

    def _refusal(
        self, registry: OpenRegistry, schema_id: int, indexes: tuple[int, ...]
    ) -> str | None:
        """Returns why the writer's schema is refused, or None. Raises UnknownSchema."""
        schema = registry.schema(schema_id, form="serialized")
        if schema.schema_type != "PROTOBUF":
            return f"it is a schema of {schema.schema_type}, not of Protobuf"
        try:
            file = FileDescriptorProto.FromString(
                base64.b64decode(schema.schema_str or "", validate=True)
            )
        except (ValueError, DecodeError):
            return None  # text: this registry gives no descriptor to compare
        try:
            compare(message_at(file, indexes), self._format.columns)
        except UnfitField as error:
            return str(error)
        return None

    def _rows(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Raises ArrowException, OverflowError."""
        arrays = [
            pa.array([column.value_of(message) for message in messages], type_.type)
            for column, type_ in zip(self._format.columns, self._format.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._format.schema)

    def _fits(self, message: Message) -> bool:
        try:
            self._rows([message])
        except (pa.ArrowException, OverflowError):
            return False
        return True


def message_at(file: FileDescriptorProto, indexes: Sequence[int]) -> DescriptorProto:
    """Finds a message in its file by its indexes. Raises UnfitField."""
    within: Sequence[DescriptorProto] = file.message_type
    for depth, index in enumerate(indexes, 1):
        if not 0 <= index < len(within):
            raise UnfitField(f"it has no message at {list(indexes)}")
        if depth == len(indexes):
            return within[index]
        within = within[index].nested_type
    raise UnfitField("it names no message")


def compare(writer: DescriptorProto, columns: Sequence[FieldColumn]) -> None:
    """Raises UnfitField naming a field whose bytes would be read as something else."""
    written = {each.number: each for each in writer.field}
    for column in columns:
        ours, theirs = column.field, written.get(column.field.number)
        if theirs is None:
            continue
        is_repeated = theirs.label == FieldDescriptorProto.LABEL_REPEATED
        is_alike = any({ours.type, theirs.type} <= group for group in ALIKE)
        if is_repeated != ours.is_repeated or not (ours.type == theirs.type or is_alike):
            raise UnfitField(
                f"its field {writer.name}.{theirs.name} with number {theirs.number} is another one"
                f" than {ours.containing_type.name}.{ours.name}"
            )


def without_indexes(framed: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns the indexes of the message in its file, and the message. Raises Unframed."""
    count, at = _zigzag(framed, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise Unframed(f"it begins with {count} indexes of a message")
    indexes: list[int] = []
    for _ in range(count):
        index, at = _zigzag(framed, at)
        indexes.append(index)
    return tuple(indexes) or (0,), framed[at:]


def _zigzag(framed: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(VARINT_BYTES_MAX):
        if at + place >= len(framed):
            break
        byte = framed[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise Unframed("the indexes of its message are cut off")


def indexes_of(message: Descriptor) -> bytes:
    """Encodes the indexes that follow a schema's id; the first message of a file is a zero."""
    path: list[int] = []
    while message is not None:
        outer = message.containing_type
        beside = (
            message.file.message_types_by_name.values() if outer is None else outer.nested_types
        )
        path.insert(0, [each.full_name for each in beside].index(message.full_name))
        message = outer
    numbers = [0] if path == [0] else [len(path), *path]
    return b"".join(_varint(2 * number) for number in numbers)


def _varint(number: int) -> bytes:
    more = bytearray()
    while number >= 0x80:
        more.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*more, number])


def schema_of(format: ProtobufValues) -> Schema:
    file = base64.b64encode(format.message.DESCRIPTOR.file.serialized_pb).decode()
    return Schema(file, "PROTOBUF")


class ProtobufEncoder:
    """Registers its schema with the first batch."""

    def __init__(self, format: ProtobufValues, subject: str) -> None:
        self._format = format
        self._subject = subject
        self._header: bytes | None = b"" if format.registry is None else None

    def encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._header is None and self._format.registry is not None:
            number = self._format.registry.open().register(self._subject, schema_of(self._format))
            self._header = header_of(number) + indexes_of(self._format.message.DESCRIPTOR)
        header = self._header or b""
        return [header + self._message(row) for row in batch.to_pylist()]

    def _message(self, row: dict[str, Any]) -> bytes:
        try:
            message = self._format.message(**_without_nulls(row))
            return bytes(message.SerializeToString())
        except (ValueError, TypeError, EncodeError) as error:
            raise Rejected(
                f"A row does not fit the Protobuf message of subject {self._subject}: {error}."
                " Change the rows in front of the sink."
            ) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
