"""A stream entry as text, if it does not fit its columns, and its id as an offset.

The text is a JSON object of the entry's fields, in the form of a quarantine line; it becomes a row
once the columns change. Binary values are base64, so that nothing is lost; in other values, bytes
that are not text are escaped.

Ids of stream entries, `<milliseconds>-<number>`, fit 64 bits: 44 bits of milliseconds reach the
year 2527; 19 bits number the entries of one millisecond. An id beyond that is refused by name: two
entries must never get the same offset.
"""

import base64
import binascii
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.json_rows import UnfitValue, typed
from pipelines.connectors.source import Offsets, UnreadableText
from pipelines.domain.errors import Rejected


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


MILLISECONDS_MAX = 1 << 44
NUMBERS_MAX = 1 << 19
_NUMBER_BITS = 19


def offset_of(entry_id: bytes) -> int:
    """Raises Rejected for an id that does not fit."""
    milliseconds, number = (int(part) for part in entry_id.split(b"-"))
    if milliseconds >= MILLISECONDS_MAX or number >= NUMBERS_MAX:
        raise Rejected(
            f"The stream entry id {entry_id.decode()} is too large: milliseconds must be below"
            f" 2^44 and the number behind them below 2^19."
        )
    return (milliseconds << _NUMBER_BITS) | number


def offsets_of(entry_ids: Sequence[bytes]) -> Offsets:
    """Converts all at once. Raises Rejected for the first id that does not fit."""
    ids = pa.array(entry_ids, pa.string())
    parts = pc.split_pattern(ids, "-").flatten()
    numbers = np.asarray(parts.cast(pa.uint64())).reshape(-1, 2)
    too_large = (numbers >= np.array([MILLISECONDS_MAX, NUMBERS_MAX], np.uint64)).any(axis=1)
    if too_large.any():
        offset_of(entry_ids[int(too_large.argmax())])
    joined = (numbers[:, 0] << np.uint64(_NUMBER_BITS)) | numbers[:, 1]
    return np.asarray(joined, np.int64)


def id_of(offset: int) -> str:
    return f"{offset >> _NUMBER_BITS}-{offset & (NUMBERS_MAX - 1)}"
