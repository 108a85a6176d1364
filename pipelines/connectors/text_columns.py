"""Converts text to columns of declared types and back, or finds the value that does not fit.

Finds the first record of a batch that cannot be read, and the records before it.

A source checks for one kind of fault after another (values that fit no column, then a missing event
time), so the first fault that it meets need not be that of the first record. Decides nothing about
what happens to the record.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.source import MalformedRecord

ISO_TIME = "%Y-%m-%dT%H:%M:%S"
"""Arrow writes as many digits of the second as the type holds."""


class UnfitValue(Exception):
    """`row` counts from 0 among the values to convert."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.column = column


def typed(values: Sequence[bytes | None], column: pa.Field) -> pa.Array:
    """Numbers in decimal, times as ISO 8601 or in the type's unit since 1970; None is null.

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
    """Text that `typed` reads back, as large strings."""
    if pa.types.is_timestamp(column.type):
        column = iso_times(column)
    return column.cast(pa.large_string())


def iso_times(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """ISO 8601; in UTC with a Z if the type has a zone."""
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
    """Yields one batch or none. `decode` decodes the first so many rows, or raises MalformedRecord
    as it did with `met`.

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
