"""The quarantine of a source: JSON lines, one for each poison record, and a source that reads them.

Owns where the files are and what a line holds. The files are those of `sink.ExactlyOnceFiles`:
prepared at the barrier, visible when the checkpoint completes, and set aside when a run is restored
to an earlier point. Each source has its own directory, because a file's name gives only the
subtask.

Once the function is corrected, the records can be read again as their source gave them, as more
splits of that source. A split is a file of the quarantine and an offset is a line number, so a run
that reads them gets each record exactly once. Bounded: records that are quarantined later wait for
the next run.
"""

import base64
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.connectors.files.growing_directory import GrowingDirectory
from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.files.sink import JSON_LINES, ExactlyOnceFiles
from pipelines.connectors.files.target import FINAL
from pipelines.connectors.json_rows import MalformedLine, before_malformed, decode_lines, has_json
from pipelines.connectors.source import AnySource, Batch, MalformedRecord, ReadsText, UnreadableText
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import (
    NoEventTime,
    check_event_time,
    check_has_event_time,
    times_of_batch,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.poison import REPLAYED_PREFIX, PoisonRecord

LINE = pa.schema([("record", pa.string()), ("source", pa.string()), ("operator", pa.string())])

RowOfText = Callable[[str], pa.RecordBatch]
"""See `connectors.source.ReadsText`."""


def quarantined_records(
    directory: Path | str,
    *,
    schema: pa.Schema,
    timestamp_column: str | None = None,
    out_of_orderness_ms: int = 0,
    row_of_text: RowOfText | None = None,
) -> GrowingDirectory:
    """Reads `directory`, the quarantine of one source with `schema`.

    `row_of_text` is that source's method, if it has one, for the records that it could not read.
    Raises Rejected naming a column whose values do not come back from a line unchanged.
    """
    for column in schema:
        check_comes_back(column)
    return GrowingDirectory(
        Path(directory),
        suffix=".jsonl",
        schema=schema,
        format_of=lambda file: QuarantinedRecords(
            file, schema=schema, time=timestamp_column, row_of_text=row_of_text
        ),
        timestamp_column=timestamp_column,
        out_of_orderness_ms=out_of_orderness_ms,
        look_every=None,
    )


@dataclass(frozen=True, slots=True)
class QuarantinedRecords:
    """One quarantine file, as the only split. Implements `Source`."""

    file: Path
    _: KW_ONLY
    schema: pa.Schema
    time: str | None = None
    out_of_orderness_ms: int = 0
    row_of_text: RowOfText | None = None
    _lines: JsonLinesFiles = field(init=False)

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.time)
        object.__setattr__(self, "_lines", JsonLinesFiles((self.file,), schema=LINE))

    @property
    def timestamp_column(self) -> str | None:
        return self.time

    def validate(self) -> None:
        """Checks the lines only; a record is checked when it is read, since it may be malformed."""
        self._lines.validate()

    def split_id(self, index: int) -> str | None:
        return self._lines.split_id(index)

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        at = offset
        for batch in self._lines.read(index, offset):
            records = _records_of(batch)
            yield from self._batches(records, at)
            at += len(records)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        batch = None if self.time is None else next(self.read(index, offset), None)
        return None if batch is None else int(times_of_batch(batch, self.time or "")[0])

    def _batches(self, records: list["_Record"], at: int) -> Iterator[pa.RecordBatch]:
        """Raises MalformedRecord."""
        try:
            batch = self._decoded(records, at)
        except MalformedRecord as error:
            yield from before_malformed(error, lambda rows: self._decoded(records[:rows], at))
        else:
            yield batch

    def _decoded(self, records: list["_Record"], at: int) -> pa.RecordBatch:
        """Raises MalformedRecord."""
        try:
            batch = self._rows(records)
            check_has_event_time(batch, self.time, lambda row: self._place(at + row))
        except MalformedLine as error:
            row, sentence = error.line, f"{self._place(at + error.line)} cannot be read: {error}."
        except NoEventTime as error:
            row, sentence = error.row, str(error)
        else:
            return batch
        raise MalformedRecord(sentence, row=row, offset=at + row, text=records[row].text)

    def _rows(self, records: list["_Record"]) -> pa.RecordBatch:
        """Raises MalformedLine."""
        row_of_text = self.row_of_text
        if row_of_text is None or not any(record.is_unread for record in records):
            return self._rows_of_json(records)
        parts, begin = [], 0
        for is_unread, alike in groupby(records, key=lambda record: record.is_unread):
            some = list(alike)
            try:
                parts.append(_unread(some, row_of_text) if is_unread else self._rows_of_json(some))
            except MalformedLine as error:
                raise MalformedLine(begin + error.line, str(error)) from error
            begin += len(some)
        return pa.concat_batches(parts)

    def _rows_of_json(self, records: list["_Record"]) -> pa.RecordBatch:
        texts = [record.text for record in records]
        rows = decode_lines(texts, pa.schema([_as_text(column) for column in self.schema]))
        columns = [_from_text(rows.column(each.name), each) for each in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _place(self, offset: int) -> str:
        return f"The record in line {offset + 1:,} of the quarantine's file {self.file}"


@dataclass(frozen=True, slots=True)
class _Record:
    text: bytes
    is_unread: bool
    """True: the source failed to read it; False: an operator failed on it."""


def _records_of(lines: pa.RecordBatch) -> list[_Record]:
    """Reads the records from a batch of `LINE`."""
    columns = (lines.column(name).to_pylist() for name in LINE.names)
    return [
        _Record((record or "").encode(), source is not None and source == operator)
        for record, source, operator in zip(*columns, strict=True)
    ]


def _unread(records: list[_Record], row_of_text: RowOfText) -> pa.RecordBatch:
    """Raises MalformedLine."""
    rows = []
    for row, record in enumerate(records):
        try:
            rows.append(row_of_text(record.text.decode()))
        except UnreadableText as error:
            raise MalformedLine(row, str(error)) from error
    return pa.concat_batches(rows)


def _as_text(column: pa.Field) -> pa.Field:
    """The column as text, for types that JSON holds as text and Arrow does not read as such."""
    return pa.field(column.name, pa.string()) if _is_text(column.type) else column


def _from_text(values: pa.Array, column: pa.Field) -> pa.Array:
    """Raises MalformedLine."""
    try:
        return _converted(values, column.type)
    except ValueError:  # Arrow's is one, too
        pass
    for row in range(len(values)):
        try:
            _converted(values.slice(row, 1), column.type)
        except ValueError as error:
            raise MalformedLine(row, f"it does not fit column {column.name}: {error}") from error
    raise MalformedLine(0, f"the values do not fit together into column {column.name}")


def _converted(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Raises ValueError."""
    if pa.types.is_binary(type_):
        bytes_ = [
            None if value is None else base64.b64decode(value) for value in values.to_pylist()
        ]
        return pa.array(bytes_, type_)
    return values.cast(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_date(type_))


def check_comes_back(column: pa.Field) -> None:
    """Raises Rejected if the column's values do not come back from a line unchanged."""
    if not has_json(column.type) or _has_text_within(column.type):
        raise Rejected(
            f"Column {column.name} of type {column.type} does not come back from a quarantine as it"
            " was; read its lines with json_lines_directory and make it of their text."
        )


def _has_text_within(type_: pa.DataType) -> bool:
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return any(_is_text(each) or _has_text_within(each) for each in inner)


QUARANTINED = pa.schema(
    [
        ("source", pa.string()),
        ("split", pa.string()),
        ("offset", pa.int64()),
        ("operator", pa.string()),
        ("error_type", pa.string()),
        ("error", pa.string()),
        ("trace", pa.string()),
        ("record", pa.string()),
    ]
)
"""The columns of a line. `record` is the row as the source gave it, a JSON object as text. If the
source could not read the record, it is the text that the source found."""


def quarantine_of(home: str | Path, source: Uid, pipeline: str) -> ExactlyOnceFiles:
    """Returns a source's quarantine; `home` holds those of all sources of the pipeline."""
    return ExactlyOnceFiles(Path(home) / source, pipeline=pipeline, format=JSON_LINES)


def quarantined(poison: PoisonRecord, record: str) -> pa.RecordBatch:
    """Returns the quarantine line of one record."""
    line = {**msgspec.structs.asdict(poison), "record": record}
    return pa.RecordBatch.from_pylist([line], schema=QUARANTINED)


@dataclass(frozen=True, slots=True)
class ReplayedQuarantine:
    """Guarantee: finds each file that existed when the run began, and none that the run adds.

    A record that fails again waits for the next replay. Implements `GrowingSource`. There is no
    event time, so that old records hold no window back.

    Needs a directory in which exactly the files of the starting point are visible.
    """

    directory: GrowingDirectory
    run_id: RunId
    _: KW_ONLY
    looks: bool
    """False: finds no new files, and only finishes those that the restored point had begun."""

    timestamp_column: None = None
    out_of_orderness_ms: int = 0
    concurrent_splits: int = 1
    discovery_interval_ms: None = None

    @classmethod
    def of(
        cls, home: str | Path, uid: Uid, source: AnySource, run_id: RunId, *, looks: bool
    ) -> "ReplayedQuarantine":
        """Raises Rejected naming a column whose values do not come back from a line unchanged."""
        records = quarantined_records(
            Path(home) / uid,
            schema=source.schema,
            timestamp_column=source.timestamp_column,
            row_of_text=source.row_of_text if isinstance(source, ReadsText) else None,
        )
        return cls(records, run_id, looks=looks)

    @property
    def schema(self) -> pa.Schema:
        return self.directory.schema

    def validate(self) -> None:
        pass  # the files are ours

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        del is_start  # each run looks once, from whatever point it starts
        if not self.looks or not self.directory.directory.exists():
            return []
        names = {name.removeprefix(REPLAYED_PREFIX) for name in known}
        found = self.directory.find(names, is_start=True)
        return [_named(split) for split in found if self._is_of_others(split.name)]

    def owner(self, name: str, parallelism: int) -> int:
        return self.directory.owner(name, parallelism)

    def oldest(self, split: SplitProgress) -> int:
        return self.directory.oldest(_of_file(split))

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return self.directory.range_gone(_of_file(split), oldest)

    def open(self) -> "ReplayedQuarantine":
        return self

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        return self.directory.read(_of_file(split))

    def close(self) -> None:
        self.directory.close()

    def _is_of_others(self, file: str) -> bool:
        name = FINAL.fullmatch(file)
        return name is not None and name["run"] != self.run_id


def _named(split: SplitProgress) -> SplitProgress:
    return msgspec.structs.replace(split, name=REPLAYED_PREFIX + split.name)


def _of_file(split: SplitProgress) -> SplitProgress:
    return msgspec.structs.replace(split, name=split.name.removeprefix(REPLAYED_PREFIX))
