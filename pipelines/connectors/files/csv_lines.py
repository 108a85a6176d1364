"""Parses lines of CSV into batches of a declared layout, or finds the line that does not fit.

The slow way: the source switches to it where Arrow has refused a block in `csv_blocks`, because
Arrow does not say which line is at fault. Here too, one line is one record; a file whose records
end otherwise cannot be separated this way. Knows a file by its bytes only.

The columns of a CSV line, and which of them are read.

Owns Arrow's conversion options. Columns of the schema are converted to their types. Where quotes
mean that a line need not be a record, all other columns are converted to bytes, so that a line
break in any of them is noticed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.domain.errors import Rejected


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """`columns` name a line's values in their order; those that `schema` lacks are not read."""

    schema: pa.Schema
    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema, columns: Sequence[str] | None) -> "CsvLayout":
        """`columns` None: a line holds the columns of `schema`. Raises Rejected."""
        names = tuple(schema.names if columns is None else columns)
        absent = sorted(set(schema.names) - set(names))
        twice = sorted({name for name in names if names.count(name) > 1})
        if absent:
            raise Rejected(
                f"Column {absent[0]} of the schema is not among the file's: {', '.join(names)}."
            )
        if twice:
            raise Rejected(f"A file cannot have two columns of the name {twice[0]}; rename one.")
        return cls(schema, names)

    def conversion(self, *, of_all: bool) -> pacsv.ConvertOptions:
        """Converts the columns of the schema, or with `of_all` every column, for `as_declared`."""
        if not of_all:
            return pacsv.ConvertOptions(column_types=self.schema, include_columns=self.schema.names)
        others = {name: pa.binary() for name in self.columns}
        declared = dict(zip(self.schema.names, self.schema.types, strict=True))
        return pacsv.ConvertOptions(column_types={**others, **declared})

    def as_declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Picks the columns of the schema from a batch of all columns."""
        columns = [batch.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


LINES = 16_384
"""How many lines are decoded at once."""

BLOCK_BYTES_MAX = 1 << 30
"""The most that Arrow accepts at once; a line may not be longer."""

TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class OtherLineEnds(Exception):
    """Some records do not end with a line feed, so counting lines does not count records."""


class MalformedCsv(Exception):
    """`row` counts from 0 after the skipped lines, `text` is the line; the message says what is
    wrong."""

    def __init__(self, row: int, text: bytes, problem: pa.ArrowInvalid) -> None:
        super().__init__(str(problem).replace("Row #1: ", ""))
        self.row = row
        self.text = text


def batches_of(content: BinaryIO, skip: int, layout: CsvLayout) -> Iterator[pa.RecordBatch]:
    """The records after the first `skip` of an open file.

    Raises MalformedCsv after all records before the malformed line, and OtherLineEnds.
    """
    left, before = skip, 0
    while wanted := _lines(content):
        passed = min(left, len(wanted))
        left, wanted = left - passed, wanted[passed:]
        fitting = _fitting(wanted, layout)
        if fitting:
            yield decoded(wanted[:fitting], layout)
        if fitting < len(wanted):
            raise _malformed(wanted[fitting], before + fitting, layout)
        before += fitting


def decoded(lines: Sequence[bytes], layout: CsvLayout) -> pa.RecordBatch:
    """A row for each line. Raises ArrowInvalid."""
    text = b"".join(lines)
    table = pacsv.read_csv(
        BytesIO(text),
        read_options=pacsv.ReadOptions(
            column_names=layout.columns,
            block_size=min(len(text) + 1, BLOCK_BYTES_MAX),
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(ignore_empty_lines=False),
        convert_options=layout.conversion(of_all=True),
    )
    if table.num_rows != len(lines):
        raise _unended()
    [batch] = table.combine_chunks().to_batches()
    return layout.as_declared(of_one_line_each(batch))


def of_one_line_each(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch. Raises ArrowInvalid if a value contains a line break, because then lines
    no longer count records: Arrow accepts a line break between quotes, and closes the last quote of
    a file itself.

    Needs a batch that is not a slice.
    """
    for text in _texts(batch):
        if b"\n" in text or b"\r" in text:
            raise _unended()
    return batch


def _texts(batch: pa.RecordBatch) -> Iterator[bytes]:
    """For each column that can hold line breaks, all values joined without separators."""
    for column in batch.columns:
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        if values.type in TEXTS or pa.types.is_fixed_size_binary(values.type):
            buffer = values.buffers()[-1]
            yield b"" if buffer is None else buffer.to_pybytes()


def _unended() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("a quoted value does not end in its line")


def _lines(content: BinaryIO) -> list[bytes]:
    lines = list(islice(content, LINES))
    if b"\r" in b"".join(lines).replace(b"\r\n", b"\n"):
        raise OtherLineEnds
    return lines


def _fitting(lines: Sequence[bytes], layout: CsvLayout) -> int:
    """Counts, by halving, how many of the first lines fit."""
    if _fits(lines, layout):
        return len(lines)
    fits, fails = 0, len(lines)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if _fits(lines[fits:middle], layout):
            fits = middle
        else:
            fails = middle
    return fits


def _fits(lines: Sequence[bytes], layout: CsvLayout) -> bool:
    try:
        decoded(lines, layout)
    except pa.ArrowInvalid:
        return False
    return True


def _malformed(line: bytes, row: int, layout: CsvLayout) -> MalformedCsv:
    text = line.rstrip(b"\r\n")
    try:
        decoded([line], layout)
    except pa.ArrowInvalid as problem:
        return MalformedCsv(row, text, problem)
    return MalformedCsv(row, text, pa.ArrowInvalid("it does not fit with the lines before it"))
