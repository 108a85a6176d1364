"""Source: files of JSON lines, a split per file, decoded a block at a time by Arrow.

One line is one record; blank lines are skipped. A rewind skips lines without decoding them.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from pipelines.connectors.files.input_files import (
    FilePaths,
    file_version,
    gone,
    input_files,
    reading,
)
from pipelines.connectors.json_rows import MalformedLine, before_malformed, decode_lines
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.watermark_strategy import (
    NoEventTime,
    check_event_time,
    check_has_event_time,
    times_of_batch,
)
from pipelines.domain.errors import Rejected

BLOCK_BYTES = 4 * 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JsonLinesFiles:
    """Each file is a split, in the order of `paths`. Fields are projected to `schema`.

    Args:
        paths: the files, or a directory of them.
        schema: the columns, which are found by their field names.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        block_bytes: how much of a file is parsed at once, in bytes.

    Raises Rejected when a path leads to no file, or `timestamp_column` holds no time.
    """

    paths: FilePaths
    _: KW_ONLY
    schema: pa.Schema
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    block_bytes: int = BLOCK_BYTES
    files: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", input_files(self.paths, ".jsonl"))
        check_event_time(self.schema, self.timestamp_column)

    def validate(self) -> None:
        """Decodes the first block of each file; a fault further in is found when it is read."""
        for file in self.files:
            with reading(file, file.name, 0), file.open("rb") as content:
                for first_line, lines in _blocks(file, content, self.block_bytes):
                    self._decoded(file, first_line, lines, _records(lines), 0)
                    break

    def split_id(self, index: int) -> str | None:
        return self.files[index].name if index < len(self.files) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        file = self.files[index]
        left = at = offset
        with reading(file, file.name, offset), file.open("rb") as content:
            for first_line, lines in _blocks(file, content, self.block_bytes):
                numbers = _records(lines)
                wanted = numbers[left:]
                left -= len(numbers) - len(wanted)
                if wanted:
                    yield from self._batches(file, first_line, lines, wanted, at)
                    at += len(wanted)
        if left:
            raise gone(file.name, offset, f"{file} holds fewer records")

    def event_time_ms(self, index: int, offset: int) -> int | None:
        if self.timestamp_column is None or index >= len(self.files):
            return None
        batch = next(self.read(index, offset), None)
        return None if batch is None else int(times_of_batch(batch, self.timestamp_column)[0])

    def split_version(self, index: int) -> str:
        return file_version(self.files[index], self.files[index].name)

    def _batches(
        self, file: Path, first_line: int, lines: list[bytes], wanted: list[int], at: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the records before a line that does not fit. `at`: the first record's offset."""
        try:
            batch = self._decoded(file, first_line, lines, wanted, at)
        except MalformedRecord as error:
            yield from before_malformed(
                error, lambda rows: self._decoded(file, first_line, lines, wanted[:rows], at)
            )
        else:
            yield batch

    def _decoded(
        self, file: Path, first_line: int, lines: list[bytes], wanted: list[int], at: int
    ) -> pa.RecordBatch:
        """Raises MalformedRecord."""
        texts = [lines[number] for number in wanted]
        try:
            batch = decode_lines(texts, self.schema)
            check_has_event_time(
                batch,
                self.timestamp_column,
                lambda row: f"Line {first_line + wanted[row] + 1:,} of the input file {file}",
            )
        except MalformedLine as error:
            line = first_line + wanted[error.line] + 1
            sentence = f"The input file {file} is malformed in line {line:,}: {error}."
            row = error.line
            raise MalformedRecord(sentence, row=row, offset=at + row, text=texts[row]) from error
        except NoEventTime as error:
            row = error.row
            raise MalformedRecord(str(error), row=row, offset=at + row, text=texts[row]) from error
        return batch


def _records(lines: list[bytes]) -> list[int]:
    """Returns the numbers of the lines that are not blank."""
    return [number for number, line in enumerate(lines) if line.strip()]


def _blocks(file: Path, content: BinaryIO, block_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields blocks of whole lines, each with the number of its first line."""
    rest, line = b"", 0
    while block := content.read(block_bytes):
        text = rest + block
        end = text.rfind(b"\n") + 1
        if len(text) - end > LINE_BYTES_MAX:
            raise Rejected(
                f"A line of the input file {file} behind line {line:,} is longer than"
                f" {LINE_BYTES_MAX:,} bytes."
            )
        if end:
            lines = text[: end - 1].split(b"\n")
            yield line, lines
            line += len(lines)
        rest = text[end:]
    if rest:
        yield line, [rest]
