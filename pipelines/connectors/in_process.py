"""Sources and sinks that need nothing outside the process, for trying and measuring pipelines.

`ArrowRows` reads a list of dictionaries or an Arrow table. `Collect` keeps rows in this process, so
it needs a run in one process (`pipelines.local`); other runs refuse it. `Print` prints rows.

`SeededGenerator` makes rows from a seed at a given rate, endlessly or up to a number. Every number
depends on (seed, split, name, offset) alone, so a restart makes the same rows from any offset on,
at any parallelism. Numbers come from SplitMix64 over counters, a batch at a time. `BlackHole`
counts rows and discards them, to measure everything in front of it.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"; Flink's
`DataGeneratorSource`.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from pipelines.connectors.sink import Segment, SinkContext, Superseded, newest_of
from pipelines.connectors.watermark_strategy import EVENT_TIME, check_event_time, times_of_batch
from pipelines.domain.errors import ProtocolError, Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json

Marker = tuple[str, int, int]
"""Run, checkpoint and subtask."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Guarantee: holds each row of this run's completed checkpoints once, after any restart.

    Needs a run in this process. Keeps every row in memory.
    """

    _segments: dict[Marker, list[pa.RecordBatch]] = field(default_factory=dict, compare=False)

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "CollectWriter":
        return CollectWriter(self._segments, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Forgets the rows that are not part of the starting point."""
        newest = newest_of(ancestors)
        foreign = [each for each in self._segments if each[1] > newest.get(RunId(each[0]), 0)]
        for each in foreign:
            del self._segments[each]
        return None

    def table(self, schema: pa.Schema) -> pa.Table:
        """The committed rows, in the order of their checkpoints."""
        return pa.Table.from_batches(self._batches(), schema=schema)

    def newest(self, schema: pa.Schema, count: int) -> pa.Table:
        """The last committed rows, at most `count`; looks at no others."""
        newest: list[pa.RecordBatch] = []
        missing = count
        for batch in reversed(self._batches()):
            newest.insert(0, batch[-min(missing, batch.num_rows) :])
            missing -= newest[0].num_rows
            if not missing:
                break
        return pa.Table.from_batches(newest, schema=schema)

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self._batches())

    def _batches(self) -> list[pa.RecordBatch]:
        markers = sorted(self._segments, key=lambda marker: marker[1:])
        return [batch for each in markers for batch in self._segments[each]]


class CollectWriter:
    """One subtask's part of a `Collect`."""

    def __init__(self, segments: dict[Marker, list[pa.RecordBatch]], context: SinkContext) -> None:
        self._segments = segments
        self._context = context
        self._interval: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._interval.append(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        batches, self._interval = self._interval, []
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return []
        marker = [self._context.run_id, checkpoint_id, self._context.subtask]
        return [Segment(marker, rows, batches)]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for segment in committables:
            if not isinstance(segment, Segment):
                raise ProtocolError("a collect prepares segments only")
            run, checkpoint, subtask = msgspec.convert(segment.marker, Marker)
            if run == self._context.run_id:  # an earlier run kept its own rows
                self._segments[run, checkpoint, subtask] = list(segment.batches)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Print:
    """Prints each row as it comes; rows that are read again after a failure are printed again.

    Args:
        prefix: the text in front of each row.
        show: the function that prints a line.
    """

    prefix: str = ""
    show: Callable[[str], None] = print

    @property
    def guarantee(self) -> str:
        return "at-least-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "PrintWriter":
        return PrintWriter(self)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None


class PrintWriter:
    """One subtask's part of a `Print`."""

    def __init__(self, sink: Print) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self._sink.show(f"{self._sink.prefix}{row}")

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        pass


BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of a table, in `splits` consecutive parts. Implements `Source`.

    Every process that builds the pipeline must build the same table. An event time column of
    another unit, or without a zone, is taken as UTC and cast.

    Args:
        table: the rows.
        timestamp_column: the column of event time, of any timestamp type. None: no event time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        splits: how many parts there are, at least 1.
        batch_rows: how many rows a batch holds, at least 1.

    Raises Rejected when `timestamp_column` holds no time, or `splits` or `batch_rows` is below 1.
    """

    table: pa.Table
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    splits: int = 1
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        if self.splits < 1 or self.batch_rows < 1:
            raise Rejected("A source of rows needs at least one split and one row in a batch.")
        object.__setattr__(self, "table", _with_event_time(self.table, self.timestamp_column))
        check_event_time(self.schema, self.timestamp_column)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"rows-{index}" if index < self.splits else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        begin, end = self._bounds(index)
        rest = self.table.slice(begin + offset, max(0, end - begin - offset)).combine_chunks()
        yield from rest.to_batches(max_chunksize=self.batch_rows)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        begin, end = self._bounds(index)
        if self.timestamp_column is None or index >= self.splits or begin + offset >= end:
            return None
        (row,) = self.table.slice(begin + offset, 1).combine_chunks().to_batches()
        return int(times_of_batch(row, self.timestamp_column)[0])

    def split_version(self, index: int) -> str:
        begin, end = self._bounds(index)
        return f"rows {begin} to {end}"

    def _bounds(self, index: int) -> tuple[int, int]:
        rows = self.table.num_rows
        return rows * index // self.splits, rows * (index + 1) // self.splits


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Builds a table; if `schema` is None, infers it. Raises Rejected if the rows do not fit it."""
    if schema is None and not rows:
        raise Rejected("Rows that are not there yet have no schema; give one.")
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Rejected(f"The rows do not fit one schema: {error}.") from error


def _with_event_time(table: pa.Table, column: str | None) -> pa.Table:
    if column is None or column not in table.column_names:
        return table
    index = table.schema.get_field_index(column)
    found = table.schema.field(index).type
    if found == EVENT_TIME or not pa.types.is_timestamp(found):
        return table
    return table.set_column(index, column, table.column(index).cast(EVENT_TIME))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draws:
    """The rows to make: their offsets, and random numbers for each of them.

    Numbers drawn under different names are independent of each other.

    Args:
        seed: the seed of the source.
        split: the number of the split.
        offsets: the numbers of the rows to make.
    """

    seed: int
    split: int
    offsets: Numbers

    def integers(self, name: str, low: int, high: int) -> Numbers:
        """Draws integers from `low` up to but not including `high`."""
        drawn = self._bits(name) % np.uint64(high - low)
        return drawn.astype(np.int64) + low

    def fractions(self, name: str) -> npt.NDArray[np.float64]:
        """Draws fractions from 0 up to but not including 1."""
        return (self._bits(name) >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)

    def _bits(self, name: str) -> npt.NDArray[np.uint64]:
        stream = xxhash.xxh64_intdigest(f"{self.seed}/{self.split}/{name}".encode())
        with np.errstate(over="ignore"):
            mixed = np.uint64(stream) + (self.offsets.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class SeededGenerator:
    """Rows made from a seed: the same ones in every run. `rows` may depend on its `Draws` only.

    The rate `rows_per_s` counts from the moment and offset at which a split is opened.

    Args:
        rows: makes one array for each column of `schema` from its `Draws`.
        schema: the columns.
        seed: decides all random numbers.
        splits: how many sequences there are.
        rows_per_split: how many rows a split has. None: it never ends.
        rows_per_s: how many rows per second all splits give together. None: as fast as possible.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        batch_rows: how many rows a batch holds.
        now_s: the clock, in seconds.
    """

    rows: Callable[[Draws], list[pa.Array]]
    _: KW_ONLY
    schema: pa.Schema
    seed: int
    splits: int = 8
    rows_per_split: int | None = None
    rows_per_s: float | None = None
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    batch_rows: int = BATCH_ROWS
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.timestamp_column)
        if self.splits < 1 or self.batch_rows < 1:
            raise Rejected("A generator needs at least one split and one row in a batch.")
        if self.rows_per_s is not None and self.rows_per_s <= 0:
            raise Rejected(f"A generator cannot make {self.rows_per_s} rows/s; give more than 0.")

    @property
    def concurrent_splits(self) -> int:
        return self.splits

    def validate(self) -> None:
        """Raises Rejected when `rows` does not make what `schema` says."""
        self._made(0, 0, 1)

    def split_id(self, index: int) -> str | None:
        return f"generated-{index}" if index < self.splits else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        began_s, begin = self.now_s(), offset
        end = sys.maxsize if self.rows_per_split is None else self.rows_per_split
        while offset < end:
            due = min(end, self._due(begin, began_s), offset + self.batch_rows)
            yield self._made(index, offset, due)
            offset = due

    def event_time_ms(self, index: int, offset: int) -> int | None:
        has_ended = self.rows_per_split is not None and offset >= self.rows_per_split
        if self.timestamp_column is None or index >= self.splits or has_ended:
            return None
        row = self._made(index, offset, offset + 1)
        return int(times_of_batch(row, self.timestamp_column)[0])

    def split_version(self, index: int) -> str:
        return f"seed {self.seed}"

    def _due(self, begin: int, began_s: float) -> int:
        """The offset up to which rows are due by now."""
        if self.rows_per_s is None:
            return sys.maxsize
        return begin + int((self.now_s() - began_s) * self.rows_per_s / self.splits)

    def _made(self, index: int, offset: int, end: int) -> pa.RecordBatch:
        draws = Draws(self.seed, index, np.arange(offset, end, dtype=np.int64))
        try:
            return pa.RecordBatch.from_arrays(self.rows(draws), schema=self.schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise Rejected(f"The generator's rows do not fit its schema: {error}.") from error


class BlackHoleWriter:
    def __init__(self) -> None:
        self.records = 0
        self.batches = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        self.batches += 1

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Discards all rows. No output leaves the engine, so the engine's own guarantee applies."""

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> BlackHoleWriter:
        return BlackHoleWriter()

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None
