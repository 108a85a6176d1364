"""Source: CSV files without a header line, a split per file, parsed at the speed of Arrow.

Meant for plain columns at a high rate. One line is one record; a blank line is a record of nulls,
and a value that contains a line break is refused. There is no event time. A rewind skips lines
without parsing them.

Until a block contains a quote, each line is a record and only the wanted columns are converted (1.4
times as fast for one column of three). From the first quote on, all columns are converted, so that
a value with a line break is refused in any column. Arrow does not say which line of a block is at
fault, so a block that it refused is parsed line by line, the slow way. A file whose records do not
end with a line feed cannot be separated this way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.connectors.files.input_files import (
    FilePaths,
    file_version,
    gone,
    input_files,
    malformed,
    reading,
)
from pipelines.connectors.source import MalformedRecord
from pipelines.domain.errors import Rejected


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """`columns` names a line's values in order; those that are not in `schema` are not read."""

    schema: pa.Schema
    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema, columns: Sequence[str] | None) -> "CsvLayout":
        """Checks the columns; None means those of `schema`. Raises Rejected."""
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
    """Yields the records of an open file after the first `skip`.

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
    """Decodes each line into a row. Raises ArrowInvalid."""
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
    """Returns the batch. Raises ArrowInvalid if a value contains a line break.

    With a line break in a value, counting lines would not count records: Arrow accepts one between
    quotes, and closes the last quote of a file itself. Needs a batch that is not a slice.
    """
    for text in _texts(batch):
        if b"\n" in text or b"\r" in text:
            raise _unended()
    return batch


def _texts(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yields all values, joined without separators, of each column that can hold line breaks."""
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


QUOTE = b'"'


class Quoted(Exception):
    """A block that was read ahead contains a quote."""


def unquoted(
    file: Path, layout: CsvLayout, skip: int, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the records after the first `skip` lines of a file that is not empty.

    Raises Quoted after some of the records before the first quote, and ArrowInvalid.
    """
    content = pa.TransformInputStream(pa.OSFile(str(file)), _without_quote)
    return iter(_opened(content, layout, skip, block_bytes, are_quoted=False))


def quoted(file: Path, layout: CsvLayout, skip: int, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Like `unquoted`, for any content. Raises ArrowInvalid."""
    content = pa.OSFile(str(file))
    for batch in _opened(content, layout, skip, block_bytes, are_quoted=True):
        yield layout.as_declared(of_one_line_each(batch))


def _without_quote(block: pa.Buffer) -> pa.Buffer:
    if QUOTE in block.to_pybytes():
        raise Quoted
    return block


def _opened(
    content: pa.NativeFile, layout: CsvLayout, skip: int, block_bytes: int, *, are_quoted: bool
) -> pacsv.CSVStreamingReader:
    return pacsv.open_csv(
        content,
        read_options=pacsv.ReadOptions(
            column_names=layout.columns,
            block_size=block_bytes,
            skip_rows_after_names=skip,
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(
            quote_char='"' if are_quoted else False, ignore_empty_lines=False
        ),
        convert_options=layout.conversion(of_all=are_quoted),
    )


BLOCK_BYTES = 4 * 1024 * 1024

Parse = Callable[[Path, CsvLayout, int, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class CsvFiles:
    """Each file is a split, in the order of `paths`. Files have no header line.

    Values of columns that are not in `schema` are not parsed, may hold anything, and cost less.

    Args:
        paths: the files, or a directory of them.
        schema: the columns to read.
        file_columns: the names of all values of a line, in order. None: those of `schema`.
        block_bytes: how much of a file is parsed at once, in bytes.
        repeat: how many times all files are read.

    Raises Rejected when a path leads to no file, or a column of `schema` is not among
    `file_columns`.
    """

    paths: FilePaths
    _: KW_ONLY
    schema: pa.Schema
    file_columns: Sequence[str] | None = None
    block_bytes: int = BLOCK_BYTES
    repeat: int = 1
    files: tuple[Path, ...] = field(init=False)
    layout: CsvLayout = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", CsvLayout.of(self.schema, self.file_columns))
        object.__setattr__(self, "files", input_files(self.paths, ".csv"))

    @property
    def timestamp_column(self) -> str | None:
        return None

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        """Parses the first block of each file; a fault further in is found when it is read."""
        for file in self.files:
            with reading(file, file.name, 0, self.layout.columns):
                try:
                    next(self._batches(file, file.name, 0), None)
                except pa.ArrowInvalid as refusal:
                    for _ in self._by_lines(file, 0, refusal):
                        pass

    def split_id(self, index: int) -> str | None:
        if index >= self.repeat * len(self.files):
            return None
        return self._name(index)

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        file = self.files[index % len(self.files)]
        split = self._name(index)
        at = offset
        with reading(file, split, offset, self.layout.columns):
            try:
                for batch in self._batches(file, split, offset):
                    yield batch
                    at += batch.num_rows
            except pa.ArrowInvalid as refusal:
                # A line does not fit; perhaps only the one before `offset`, which was read already.
                yield from self._by_lines(file, at, refusal)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None

    def split_version(self, index: int) -> str:
        return file_version(self.files[index % len(self.files)], self._name(index))

    def _batches(self, file: Path, split: str, offset: int) -> Iterator[pa.RecordBatch]:
        """Raises ArrowInvalid if a line of the next block does not fit."""
        at = offset
        try:
            for batch in self._from(file, split, offset, unquoted):
                yield batch
                at += batch.num_rows
        except Quoted:
            yield from self._from(file, split, at, quoted)

    def _from(self, file: Path, split: str, offset: int, parse: Parse) -> Iterator[pa.RecordBatch]:
        if file.stat().st_size == 0:
            batches: Iterator[pa.RecordBatch] = iter(())
        else:
            # One record early, to distinguish a file that has shrunk from a file at its end.
            batches = parse(file, self.layout, max(0, offset - 1), self.block_bytes)
        if offset:
            first = next((batch for batch in batches if batch.num_rows), None)
            if first is None:
                raise gone(split, offset, f"{file} holds fewer records")
            yield first.slice(1)
        yield from batches

    def _by_lines(
        self, file: Path, offset: int, refusal: pa.ArrowInvalid
    ) -> Iterator[pa.RecordBatch]:
        """Raises MalformedRecord after the last record that fits, or `refusal` if the lines cannot
        be separated."""
        with file.open("rb") as content:
            try:
                yield from batches_of(content, offset, self.layout)
            except OtherLineEnds:
                raise refusal from None
            except MalformedCsv as error:
                at = offset + error.row
                problem = malformed(file, error, self.layout.columns, f" in line {at + 1:,}")
                raise MalformedRecord(
                    str(problem), row=error.row, offset=at, text=error.text
                ) from error

    def _name(self, index: int) -> str:
        turn, position = divmod(index, len(self.files))
        name = self.files[position].name
        return f"{name} (round {turn})" if turn else name
