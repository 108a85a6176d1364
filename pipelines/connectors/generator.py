"""Source: rows made from a seed, at a given rate. Sink: a black hole, which counts what arrives.

The rows are endless or end at a number. Every number follows from (seed, split, name, offset)
alone, so a restart makes the same rows from any offset on, at any parallelism. Numbers come from
SplitMix64 over counters, a batch at a time. The sink keeps nothing, to measure everything in front
of it.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"; Flink's
`DataGeneratorSource`.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from pipelines.connectors.sink import SinkContext, Superseded
from pipelines.connectors.watermark_strategy import check_event_time, times_of_batch
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json

BATCH_ROWS = 8_192
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draws:
    """The rows to make: their offsets, and random numbers for each of them.

    Numbers drawn under different names are independent of each other.
    """

    seed: int
    split: int
    offsets: Numbers

    def integers(self, name: str, low: int, high: int) -> Numbers:
        """From `low` up to but not `high`."""
        drawn = self._bits(name) % np.uint64(high - low)
        return drawn.astype(np.int64) + low

    def fractions(self, name: str) -> npt.NDArray[np.float64]:
        """From 0 up to but not 1."""
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
    """`rows` makes one array for each column of `schema`; it may depend on its `Draws` only.

    `rows_per_s` is shared by all splits and counted from where a split is opened; None: as fast as
    they are taken. `rows_per_split` None: for ever.
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
        """The offset up to which rows may be there by now."""
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
    """No output leaves the engine, so the engine's own guarantee is all there is."""

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
