"""Rows as CSV or JSON files: sent while they are read, in the memory of one chunk."""

import csv
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from operator import attrgetter

import msgspec
from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
Chunks = Iterable[Sequence[object]]
"""Chunks of dataclass values."""


def download(parts: Iterator[bytes], file_name: str, content_type: str) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_sent(parts), content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


async def _sent(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Reads in a thread that may use the database; no part is empty."""
    while part := await sync_to_async(_next)(parts):
        yield part


def _next(parts: Iterator[bytes]) -> bytes:
    """Returns the next part, or an empty one at the end."""
    return next(parts, b"")


def csv_parts(columns: list[str], chunks: Chunks) -> Iterator[bytes]:
    """Yields a heading, and a line per row; `columns` are two or more of its fields."""
    values_of = attrgetter(*columns)
    yield _lines([columns])
    for rows in chunks:
        yield _lines([[_cell(value) for value in values_of(row)] for row in rows])


def _lines(rows: list[list[str]]) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: object) -> str:
    """Writes times in ISO 8601, unknown values as empty, and structured ones as JSON."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    # A spreadsheet would evaluate the text of an exception.
    is_formula = isinstance(value, str) and value.startswith(FORMULA_SIGNS)
    return f"'{value}" if is_formula else str(value)


def json_parts(chunks: Chunks) -> Iterator[bytes]:
    """Yields one JSON array, in parts."""
    before = b"[\n"
    for rows in chunks:
        yield before + b",\n".join(msgspec.json.encode(row) for row in rows)
        before = b",\n"
    yield b"\n]\n" if before == b",\n" else b"[]\n"
