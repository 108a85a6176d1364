"""Source: CSV files without a header line, a split per file, parsed at the speed of Arrow.

Meant for plain columns at a high rate. One line is one record; a blank line is a record of nulls,
and a value that contains a line break is refused. There is no event time. A rewind skips lines
without parsing them. `csv_blocks` parses blocks, `csv_lines` finds the line that does not fit.

Parses blocks of CSV into batches at the speed of Arrow, from any line on.

Until a block holds a quote, each line is a record and only the wanted columns are converted (1.4
times as fast for one column of three). From the first quote on all columns are converted, so that a
value with a line break is refused in any column. `csv_lines` finds the line that does not fit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.connectors.files.csv_lines import (
    CsvLayout,
    MalformedCsv,
    OtherLineEnds,
    batches_of,
    of_one_line_each,
)
from pipelines.connectors.files.input_files import (
    FilePaths,
    file_version,
    gone,
    input_files,
    malformed,
    reading,
)
from pipelines.connectors.source import MalformedRecord

QUOTE = b'"'


class Quoted(Exception):
    """A block that was read ahead contains a quote."""


def unquoted(
    file: Path, layout: CsvLayout, skip: int, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The records after the first `skip` lines of a file that is not empty.

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
    """Each file is a split; `repeat` says how many times all files are read, round after round.

    `file_columns` names all values of a line, in order, if `schema` wants only some of them. The
    other values are not parsed, may hold anything, and cost less.
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
        """Raises ArrowInvalid: a line of the next block does not fit."""
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
