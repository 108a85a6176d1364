"""Source: Redis Streams, a split per stream, ids as offsets, without consumer groups.

Decides where to begin and end. Only the checkpoint holds the progress; a group would be a second
truth. Reads nothing itself; see `redis.reader`.
"""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field

import pyarrow as pa

from pipelines.connectors.redis.connection import RedisConnection
from pipelines.connectors.redis.entry_text import row_of_fields
from pipelines.connectors.redis.reader import StreamsReader
from pipelines.connectors.redis.stream_extent import marked_offset, oldest_of, range_gone
from pipelines.connectors.source import StartAt
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import check_event_time
from pipelines.domain.errors import Rejected, Retryable

BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """Fields become the columns of `schema`; a field that an entry lacks is null. `url` is a
    secret: it may hold a password, and appears in no text of this source.

    `is_bounded`: the run ends with the entries that existed when it began.
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
        return range_gone(split, oldest)

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
