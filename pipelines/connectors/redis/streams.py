"""Source: Redis Streams, a split per stream, ids as offsets, without consumer groups.

Decides where to begin and end. Only the checkpoint holds the progress; a group would be a second
truth. The reader fetches entries and checks for lost ones in one transaction, so that nothing is
trimmed in between. If the server is away, the reader waits: it yields empty batches, so that
barriers pass, and asks again each turn, for one stream only, for a bounded time.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np
import pyarrow as pa

from pipelines.connectors.json_rows import UnfitValue, before_malformed, typed
from pipelines.connectors.redis.connection import Entry, RedisConnection
from pipelines.connectors.redis.stream_entries import (
    marked_offset,
    offsets_of,
    oldest_of,
    passed_by,
    pending_of,
    range_gone,
    row_of_fields,
    text_of_fields,
)
from pipelines.connectors.source import (
    LoggedRecords,
    MalformedRecord,
    Offsets,
    PastGap,
    StartAt,
)
from pipelines.connectors.split_progress import SplitProgress, sum_known
from pipelines.connectors.watermark_strategy import (
    NoEventTime,
    check_event_time,
    check_has_event_time,
)
from pipelines.domain.errors import InputLost, Rejected, Retryable

AWAY_S_MAX = 60.0
"""How long requests may fail before the attempt ends and the restart strategy decides."""


NONE: Offsets = np.array([], np.int64)


class StreamsReader:
    """One connection for all streams of a subtask."""

    def __init__(
        self, url: str, schema: pa.Schema, timestamp_column: str | None, batch_rows: int
    ) -> None:
        self._connection = RedisConnection(url)
        self._schema = schema
        self._timestamp_column = timestamp_column
        self._batch_rows = batch_rows
        self._away_since_s: float | None = None  # the first failure since the last answer
        self._told_away: set[str] = set()  # streams that had their turn since a failure
        self._pending: dict[str, int | None] = {}
        self._source_problem = ""

    def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
        at = split
        self._pending[at.name] = None
        while at.end_offset is None or at.offset < at.end_offset:
            entries = self._next(at)
            behind = at if entries is None else self._behind(at, entries)
            if entries == [] and at.end_offset is not None:
                break
            try:
                batch = self._decoded(at.name, entries or [])
            except MalformedRecord as error:
                yield from self._before_malformed(error, at.name, entries or [])
            at = behind
            yield replace(batch, version=at.version)
        self._pending[at.name] = 0

    def _before_malformed(
        self, met: MalformedRecord, stream: str, entries: list[Entry]
    ) -> Iterator[LoggedRecords]:
        """Always raises MalformedRecord."""
        yield from before_malformed(met, lambda rows: self._decoded(stream, entries[:rows]))

    def close(self) -> None:
        self._connection.close()

    def pending_records(self) -> int | None:
        """Counts the entries added since the last read, less those that were deleted unread."""
        return sum_known(self._pending.copy().values())

    def source_problem(self) -> str:
        """See `ReportsProblem`."""
        return self._source_problem

    def _behind(self, at: SplitProgress, entries: list[Entry]) -> SplitProgress:
        """The position after these entries. Raises Rejected if entries are missing among them."""
        offsets = offsets_of([entry[0] for entry in entries]) if entries else NONE
        last = entries[-1][1] if entries else []
        return passed_by(at, offsets, last, is_all=len(entries) < self._batch_rows)

    def _next(self, at: SplitProgress) -> list[Entry] | None:
        """Fetches the next entries; None: the server is away. Raises Rejected naming those gone."""
        if self._told_away and at.name not in self._told_away:
            self._told_away.add(at.name)
            return None
        try:
            extent, entries, marked = self._connection.entries(
                at.name, at.offset, at.end_offset, self._batch_rows, marked_offset(at)
            )
        except Retryable as failure:
            self._on_failure(at.name, failure)
            return None
        self._away_since_s, self._told_away, self._source_problem = None, set(), ""
        oldest = oldest_of(extent, at, marked)
        if oldest > at.offset:
            raise InputLost(range_gone(at, oldest, extent))
        self._pending[at.name] = pending_of(extent, at, len(entries))
        return entries

    def _on_failure(self, stream: str, failure: Retryable) -> None:
        """A request may take seconds to fail, so this stream alone asks next."""
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s > AWAY_S_MAX:
            raise failure
        self._told_away, self._source_problem = {stream}, str(failure)

    def _decoded(self, stream: str, entries: list[Entry]) -> LoggedRecords:
        ids = [entry[0] for entry in entries]
        if not ids:
            empty = pa.RecordBatch.from_pylist([], schema=self._schema)
            return LoggedRecords(empty, NONE)
        try:
            arrays = [typed(_values(entries, column.name), column) for column in self._schema]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            check_has_event_time(
                batch,
                self._timestamp_column,
                lambda row: f"Entry {ids[row].decode()} of the stream {stream}",
            )
        except UnfitValue as unfit:
            raise _malformed(
                f"Entry {ids[unfit.row].decode()} of the stream {stream} does not fit column"
                f" {unfit.column}: {unfit}.",
                entries,
                unfit.row,
                self._schema,
            ) from unfit
        except NoEventTime as error:
            raise _malformed(str(error), entries, error.row, self._schema) from error
        return LoggedRecords(batch, offsets_of(ids))


def _malformed(sentence: str, entries: list[Entry], row: int, schema: pa.Schema) -> MalformedRecord:
    id_, fields = entries[row]
    (offset,) = offsets_of([id_]).tolist()
    return MalformedRecord(sentence, row=row, offset=offset, text=text_of_fields(fields, schema))


def _values(entries: list[Entry], name: str) -> list[bytes | None]:
    """Looks first at the place of the field in the first entry, which most entries share."""
    field, first = name.encode(), entries[0][1]
    place = next((i for i in range(0, len(first), 2) if first[i] == field), None)
    if place is None:
        return [_value(fields, field) for _, fields in entries]
    return [
        fields[place + 1]
        if len(fields) > place and fields[place] == field
        else _value(fields, field)
        for _, fields in entries
    ]


def _value(fields: list[bytes], name: bytes) -> bytes | None:
    return next((fields[i + 1] for i in range(0, len(fields), 2) if fields[i] == name), None)


BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """Streams of Redis. A field that is missing in an entry is null.

    Args:
        url: the address, `redis://...` or `rediss://...`. It is a secret.
        streams: the keys of the streams.
        schema: the columns, which are found by the names of the fields.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        start_at: where a run without a recovery point begins, `StartAt.OLDEST` or `StartAt.NEWEST`.
        is_bounded: the run ends with the entries that existed when it began.
        batch_rows: how many entries are asked for at once.

    Raises Rejected when no stream is named, or `timestamp_column` holds no time.
    """

    url: str = field(repr=False)
    streams: tuple[str, ...]
    _: KW_ONLY
    schema: pa.Schema
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    start_at: StartAt = StartAt.OLDEST
    is_bounded: bool = False
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.timestamp_column)
        if not self.streams or len(set(self.streams)) < len(self.streams):
            raise Rejected("Name each Redis stream to read once, and at least one.")

    @property
    def concurrent_splits(self) -> int:
        return len(self.streams)

    @property
    def discovery_interval_ms(self) -> None:
        return None

    @property
    def begins_once(self) -> bool:
        """See `BeginsOnce`."""
        return True

    def validate(self) -> None:
        with RedisConnection(self.url) as connection:
            try:
                for name in self.streams:
                    if connection.extent(name) is None:
                        raise Rejected(f"There is no stream {name} on the Redis server.")
            except Retryable as error:
                raise Rejected(f"{error}.") from error

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        if self.is_bounded and not is_start:
            return []
        with RedisConnection(self.url) as connection:
            return [
                self._begin(connection, name, is_start=is_start)
                for name in self.streams
                if name not in known
            ]

    def owner(self, name: str, parallelism: int) -> int:
        return self.streams.index(name) % parallelism if name in self.streams else 0

    def oldest(self, split: SplitProgress) -> int:
        if split.name not in self.streams:
            raise Rejected(f"The stream {split.name} is not among those to read any more.")
        with RedisConnection(self.url) as connection:
            found = connection.look(split.name, marked_offset(split))
            return oldest_of(found.extent, split, found.marked)

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        extent = None
        with suppress(Retryable), RedisConnection(self.url) as connection:
            extent = connection.extent(split.name)
        return range_gone(split, oldest, extent)

    @property
    def retention_setting(self) -> str:
        return f"MAXLEN or MINID of the commands that trim {', '.join(self.streams)}"

    def past_gap(self, split: SplitProgress) -> PastGap | None:
        """See `ReadsPastGaps`."""
        with RedisConnection(self.url) as connection:
            found = connection.look(split.name, marked_offset(split))
            oldest = oldest_of(found.extent, split, found.marked)
            if found.extent is None or oldest <= split.offset:
                return None
            extent = found.extent
            ahead = connection.count(split.name, extent) if extent.has_hole_ahead else None
            return extent.past_gap(split, ahead)

    def row_of_text(self, text: str) -> pa.RecordBatch:
        return row_of_fields(text, self.schema)

    def open(self) -> StreamsReader:
        return StreamsReader(self.url, self.schema, self.timestamp_column, self.batch_rows)

    def _begin(self, connection: RedisConnection, name: str, *, is_start: bool) -> SplitProgress:
        extent = connection.extent(name)
        if extent is None:
            return SplitProgress(name, end_offset=0 if self.is_bounded else None)
        if is_start and self.start_at is StartAt.NEWEST and not self.is_bounded:
            return extent.from_newest(name)
        ahead = connection.count(name, extent) if extent.has_hole_ahead else None
        return extent.from_oldest(name, extent.last + 1 if self.is_bounded else None, ahead)
