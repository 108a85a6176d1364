"""Fakes for the runtime: a clock that a test moves by hand, and a source in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

EVENT_TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema([("key", pa.int64()), ("at", EVENT_TIME)])


@dataclass(slots=True)
class ManualClock:
    now_ms: float = 1_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


@dataclass(slots=True)
class ListSource:
    """A source whose splits are lists of (key, event time), read in batches of `batch_rows`."""

    splits: list[list[tuple[int, int]]]
    batch_rows: int = 3
    timestamp_column: str | None = "at"
    out_of_orderness_ms: int = 0
    concurrent_splits: int = 1
    silent: set[int] = field(default_factory=set)  # splits without more records for now
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"split-{index}" if index < len(self.splits) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        rows = self.splits[index]
        for start in range(offset, len(rows), self.batch_rows):
            yield batch_of(rows[start : start + self.batch_rows])
            while index in self.silent:
                yield batch_of([])

    def event_time_ms(self, index: int, offset: int) -> int | None:
        if index >= len(self.splits) or offset >= len(self.splits[index]):
            return None
        return self.splits[index][offset][1]


def batch_of(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": key, "at": at} for key, at in rows], schema=SCHEMA)


def keys_of(batch: pa.RecordBatch) -> list[int]:
    keys: list[int] = batch.column("key").to_pylist()
    return keys


def times_of(batch: pa.RecordBatch) -> list[int]:
    times: list[int] = batch.column("at").cast(pa.int64()).to_pylist()
    return times
