"""Rows as text: as JSON objects, one per line, and columns of text as declared types and back.

Times are ISO 8601 in UTC, decimals and dates are text, binary is base64. NaN and infinity, which
JSON cannot express, become null. Every column is written, null or not. When lines are read, fields
that the schema does not name are left out, missing ones are null, and times have an offset. This
module knows neither files nor brokers: the caller says where the lines came from.

It finds a value or line that does not fit, and the records before it. A source checks for one kind
of fault after another (values that fit no column, then a missing event time), so the first fault
that it meets need not belong to the first faulty record. This module does not decide what happens
to the record.
"""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from pipelines.connectors.source import MalformedRecord

ISO_TIME = "%Y-%m-%dT%H:%M:%S"
"""Arrow writes the seconds with as many decimals as the type holds."""


class UnfitValue(Exception):
    """`row` counts from 0 among the values to convert."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.column = column


def typed(values: Sequence[bytes | None], column: pa.Field) -> pa.Array:
    """Reads numbers in decimal, times as ISO 8601 or in the type's unit since 1970, None as null.

    Raises UnfitValue.
    """
    raw = pa.array(values, pa.binary())
    try:
        return _converted(raw, column.type)
    except pa.ArrowException:
        pass
    for row in range(len(raw)):
        try:
            _converted(raw.slice(row, 1), column.type)
        except pa.ArrowException as error:
            problem = str(error).split("\n")[0].rstrip(".")
            raise UnfitValue(row, column.name, problem) from error
    raise UnfitValue(0, column.name, "the values do not fit together")


def text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts a column to large strings that `typed` can read back."""
    if pa.types.is_timestamp(column.type):
        column = iso_times(column)
    return column.cast(pa.large_string())


def iso_times(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Formats times as ISO 8601, in UTC with a Z if the type has a zone."""
    if times.type.tz is None:
        return pc.strftime(times, ISO_TIME)
    return pc.strftime(times.cast(pa.timestamp(times.type.unit, "UTC")), ISO_TIME + "Z")


def _converted(raw: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Raises ArrowException."""
    if pa.types.is_binary(wanted):
        return raw
    text = raw.cast(pa.string())
    if not pa.types.is_timestamp(wanted):
        return text.cast(wanted)
    if pc.all(pc.match_substring_regex(text, r"^-?\d+$")).as_py():
        return text.cast(pa.int64()).cast(wanted)
    return text.cast(pa.timestamp("ns", wanted.tz)).cast(wanted, safe=False)


T = TypeVar("T")


def before_malformed(met: MalformedRecord, decode: Callable[[int], T]) -> Iterator[T]:
    """Yields the records before the first malformed one, as one batch or none.

    `decode(count)` decodes the first `count` rows, or raises MalformedRecord, as it raised `met`.
    Always raises MalformedRecord, for the first malformed record.
    """
    first = met
    while first.row:
        try:
            batch = decode(first.row)
        except MalformedRecord as earlier:
            first = earlier
            continue
        yield batch
        break
    raise first


_encoder = msgspec.json.Encoder()


def json_lines_of(table: pa.Table) -> bytes:
    """Encodes each row as a line, which ends with a newline and contains no other."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, iso_times(table.column(index)))
    return _encoder.encode_lines(table.to_pylist())


def has_json(type_: pa.DataType, *, nested: bool = False) -> bool:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return has_json(type_.value_type, nested=True)
    if pa.types.is_struct(type_):
        return all(has_json(field.type, nested=True) for field in type_)
    if pa.types.is_timestamp(type_):
        return not (nested and type_.unit == "ns")  # Python's times have no ns
    return any(is_one(type_) for is_one in _PLAIN)


def record_text(row: pa.RecordBatch) -> str:
    """One row as JSON. A column without a JSON form is written as Python prints it."""
    table = pa.Table.from_batches([row])
    for index, column in enumerate(table.schema):
        if not has_json(column.type):
            values = [
                None if value is None else repr(value) for value in row.column(index).to_pylist()
            ]
            table = table.set_column(index, column.name, pa.array(values, pa.string()))
    return json_lines_of(table).decode().rstrip("\n")


_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
)


BESIDE = b" \t\r\n" + BOM_UTF8
"""Bytes that may come before and after an object."""


class MalformedLine(Exception):
    """`line` counts from 0 within the decoded lines; the message says what is wrong with it."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def decode_lines(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Decodes each line into a row. Raises MalformedLine for the first line that does not fit."""
    try:
        return _decoded(lines, schema)
    except pa.ArrowInvalid:
        pass
    line = _first_malformed(lines, schema)
    try:
        _decoded(lines[line : line + 1], schema)
    except pa.ArrowInvalid as error:
        raise MalformedLine(line, _problem(error)) from error
    raise MalformedLine(line, "it does not fit together with the lines before it")


def decode_each_line(
    lines: Sequence[bytes], schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Returns the rows of the lines that fit, and the problem of each other line by its number.

    Finds lines that do not fit by halving, so it parses each line log(n) times at most.
    """
    parts: list[pa.RecordBatch] = []
    problems: dict[int, str] = {}
    left = [(0, len(lines))]
    while left:
        start, end = left.pop()
        try:
            parts.append(_decoded(lines[start:end], schema))
        except pa.ArrowInvalid as error:
            middle = (start + end) // 2
            if middle == start:
                problems[start] = _problem(error)
            else:
                left += [(middle, end), (start, middle)]
    rows = pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=schema)
    return rows, problems


def _decoded(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Raises ArrowInvalid."""
    if not lines:
        return pa.RecordBatch.from_pylist([], schema=schema)
    text = b"\n".join(lines)
    # Arrow crashes the process if every value is null, even in what is no JSON: `null:"{"`.
    if not lines[0].lstrip().startswith(b"{") and b"null" in text:
        raise pa.ArrowInvalid("it is not one JSON object")
    table = pajson.read_json(
        BytesIO(text),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=_with_fractions(schema), unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(lines) or not _begin_and_end_objects(lines, text):
        raise pa.ArrowInvalid("it is not one JSON object")
    columns = [
        table.column(column.name).combine_chunks().cast(column.type, safe=False)
        for column in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    batch.validate(full=True)  # Arrow's reader also takes text that is no UTF-8
    return batch


def _begin_and_end_objects(lines: Sequence[bytes], text: bytes) -> bool:
    """Returns True if no object crosses a line end. `text`, all lines together, is valid JSON.

    Within an object, no closing brace is followed by an opening one. So if there are as many
    objects as lines, each line holds one.
    """
    ends = len(lines) - 1
    if text.count(b"}\n{") == text.count(b"\n") == ends and text[:1] + text[-1:] == b"{}":
        return True
    trimmed = (line.strip(BESIDE) for line in lines)
    return all(line[:1] + line[-1:] == b"{}" for line in trimmed)


def _with_fractions(schema: pa.Schema) -> pa.Schema:
    """Reads times in ns: Arrow refuses more decimals than a type holds. A cast then cuts them."""
    return pa.schema(
        pa.field(c.name, pa.timestamp("ns", c.type.tz) if pa.types.is_timestamp(c.type) else c.type)
        for c in schema
    )


def _first_malformed(lines: Sequence[bytes], schema: pa.Schema) -> int:
    """Finds the longest beginning that fits, by halving; the malformed line comes next."""
    fits, fails = 0, len(lines)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            _decoded(lines[fits:middle], schema)
        except pa.ArrowInvalid:
            fails = middle
        else:
            fits = middle
    return fits


def _problem(error: pa.ArrowInvalid) -> str:
    """Returns Arrow's message without the row number, which counts within this one line."""
    first = str(error).strip().split("\n")[0].rstrip(".")
    return first.removeprefix("JSON parse error: ").removesuffix(" in row 0").rstrip(".")
