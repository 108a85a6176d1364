"""A stream entry that does not fit its columns, as text, and as a row once the columns change.

The text is a JSON object of the entry's fields, in the form of a quarantine line. Binary values are
base64, so that nothing is lost; in other values, bytes that are not text are escaped.
"""

import base64
import binascii
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from pipelines.connectors.source import UnreadableText
from pipelines.connectors.text_columns import UnfitValue, typed


def text_of_fields(fields: Sequence[bytes], schema: pa.Schema) -> bytes:
    """`fields`: names and values in turn; if a name repeats, the first one counts."""
    binary = {column.name for column in schema if pa.types.is_binary(column.type)}
    found: dict[str, str] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        column = _escaped(name)
        is_binary = column in binary
        found.setdefault(column, base64.b64encode(value).decode() if is_binary else _escaped(value))
    return msgspec.json.encode(found)


def row_of_fields(text: str, schema: pa.Schema) -> pa.RecordBatch:
    """Raises UnreadableText."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, object])
        values = [_value(fields.get(column.name), column) for column in schema]
        columns = [typed([v], column) for v, column in zip(values, schema, strict=True)]
    except msgspec.DecodeError as error:
        raise UnreadableText("it is not one JSON object") from error
    except UnfitValue as unfit:
        raise UnreadableText(f"it does not fit column {unfit.column}: {unfit}") from unfit
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(found: object, column: pa.Field) -> bytes | None:
    """The bytes as in the entry; a row that an operator got has JSON's numbers and truth values."""
    if found is None:
        return None
    if not isinstance(found, str):
        return msgspec.json.encode(found)
    if not pa.types.is_binary(column.type):
        return found.encode()
    try:
        return base64.b64decode(found, validate=True)
    except binascii.Error as error:
        raise UnfitValue(0, column.name, "it is no base64") from error


def _escaped(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
