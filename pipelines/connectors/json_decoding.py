"""Decodes lines of JSON into one batch of a declared schema, or finds the line that does not fit.

A line is one object. Fields that the schema does not name are left out, missing ones are null;
times are ISO 8601 with an offset. Knows neither files nor brokers: the caller says where the lines
came from.
"""

from codecs import BOM_UTF8
from collections.abc import Sequence
from io import BytesIO

import pyarrow as pa
import pyarrow.json as pajson

BESIDE = b" \t\r\n" + BOM_UTF8
"""Bytes that may stand before and after an object."""


class MalformedLine(Exception):
    """`line` counts from 0 within the decoded lines; the message says what is wrong with it."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def decode_lines(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """One row for each line. Raises MalformedLine for the first one that does not fit."""
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


def _decoded(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Raises ArrowInvalid."""
    if not lines:
        return pa.RecordBatch.from_pylist([], schema=schema)
    text = b"\n".join(lines)
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
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _begin_and_end_objects(lines: Sequence[bytes], text: bytes) -> bool:
    """For text that is valid JSON: True if no object crosses a line end. Within an object no
    closing brace is followed by an opening one, so with as many objects as lines, each line holds
    one. `text` is all lines.
    """
    ends = len(lines) - 1
    if text.count(b"}\n{") == text.count(b"\n") == ends and text[:1] + text[-1:] == b"{}":
        return True
    trimmed = (line.strip(BESIDE) for line in lines)
    return all(line[:1] + line[-1:] == b"{}" for line in trimmed)


def _with_fractions(schema: pa.Schema) -> pa.Schema:
    """Arrow refuses more digits of a second than a type holds; the rest is cut off afterwards."""
    return pa.schema(
        pa.field(c.name, pa.timestamp("ns", c.type.tz) if pa.types.is_timestamp(c.type) else c.type)
        for c in schema
    )


def _first_malformed(lines: Sequence[bytes], schema: pa.Schema) -> int:
    """Finds by halving the longest beginning that fits; the malformed line comes next."""
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
    """Without the row number, which Arrow counts within this one line."""
    first = str(error).strip().split("\n")[0].rstrip(".")
    return first.removeprefix("JSON parse error: ").removesuffix(" in row 0").rstrip(".")
