"""Source: Parquet files, a split per file, rewound by skipping whole row groups.

Maps an offset to a place in a file and, for an endless replay, a split to a file and a cycle. The
runtime paces the reading and deals the splits.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.connectors.files.input_files import (
    FilePaths,
    check_columns,
    file_version,
    gone,
    input_files,
    reading,
)
from pipelines.connectors.json_rows import record_text
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.watermark_strategy import (
    NoEventTime,
    check_event_time,
    check_has_event_time,
)
from pipelines.domain.errors import Rejected

YEAR_MS = 365 * 24 * 3_600_000
CACHED_ROW_GROUPS = 16
"""Row groups whose timestamps stay in memory to pace a replay, over all sources of a process."""


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Each file is a split, in the order of `paths`. Columns are projected to `schema`.

    If the times of the files overlap, read several files side by side: the slowest one sets event
    time. A file that is read again gets later times, so that later splits still hold later event
    time.

    Args:
        paths: the files, or a directory of them.
        schema: the columns to read.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        batch_rows: how many rows a batch holds.
        forever: the files are read again and again.
        cycle_shift_ms: how much each further reading adds to every timestamp, in milliseconds.
        concurrent_splits: how many files a subtask reads side by side.

    Raises Rejected when a path leads to no file, or `timestamp_column` holds no time.
    """

    paths: FilePaths
    _: KW_ONLY
    schema: pa.Schema
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    batch_rows: int = 8_192
    forever: bool = False
    cycle_shift_ms: int = YEAR_MS
    concurrent_splits: int = 1
    files: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.concurrent_splits < 1:
            raise Rejected(f"{self.concurrent_splits} files cannot be read side by side; give 1.")
        object.__setattr__(self, "files", input_files(self.paths, ".parquet"))
        check_event_time(self.schema, self.timestamp_column)

    def validate(self) -> None:
        for index, file in enumerate(self.files):
            with reading(file, self._name(index), 0), pq.ParquetFile(file) as parquet:
                check_columns(file, parquet.schema_arrow, self.schema)

    def split_id(self, index: int) -> str | None:
        return self._name(index) if self._has(index) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        cycle, file = self._place(index)
        split = self._name(index)
        # Arrow's default reads all columns of the whole file into memory ahead, on other threads.
        with reading(file, split, offset), pq.ParquetFile(file, pre_buffer=False) as parquet:
            check_columns(file, parquet.schema_arrow, self.schema)
            if offset > parquet.metadata.num_rows:
                raise gone(split, offset, f"{file} holds only {parquet.metadata.num_rows} records")
            at = offset
            for batch in self._batches_from(parquet, offset):
                for part in self._checked(batch, file, at):
                    yield self._shifted(part, cycle)
                at += batch.num_rows

    def event_time_ms(self, index: int, offset: int) -> int | None:
        column = self.timestamp_column
        if column is None or not self._has(index):
            return None
        cycle, file = self._place(index)
        with reading(file, self._name(index), offset):
            bounds = _row_group_bounds(file)
            group = int(np.searchsorted(bounds, offset, side="right"))
            if group == len(bounds):
                return None
            times = _timestamps_ms(file, column, group)
        start = bounds[group] - len(times)
        return int(times[offset - start]) + cycle * self.cycle_shift_ms

    def split_version(self, index: int) -> str:
        return file_version(self._place(index)[1], self._name(index))

    def _has(self, index: int) -> bool:
        return self.forever or index < len(self.files)

    def _place(self, index: int) -> tuple[int, Path]:
        cycle, position = divmod(index, len(self.files))
        return cycle, self.files[position]

    def _name(self, index: int) -> str:
        cycle, file = self._place(index)
        return f"{file.name} (cycle {cycle})" if cycle else file.name

    def _batches_from(self, parquet: pq.ParquetFile, offset: int) -> Iterator[pa.RecordBatch]:
        bounds = _bounds(parquet.metadata)
        first = int(np.searchsorted(bounds, offset, side="right"))
        skip = offset - (bounds[first - 1] if first else 0)
        for batch in parquet.iter_batches(
            self.batch_rows,
            row_groups=range(first, len(bounds)),
            columns=self.schema.names,
            use_threads=False,
        ):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)

    def _checked(self, batch: pa.RecordBatch, file: Path, at: int) -> Iterator[pa.RecordBatch]:
        """Yields the records up to a malformed one. `at`: the first record's offset.

        Raises MalformedRecord.
        """
        arrays = [batch.column(name) for name in self.schema.names]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        try:
            check_has_event_time(
                rows,
                self.timestamp_column,
                lambda row: f"Record {at + row + 1:,} of the input file {file}",
            )
        except NoEventTime as error:
            if error.row:
                yield rows.slice(0, error.row)
            row = error.row
            text = record_text(rows.slice(row, 1)).encode()
            raise MalformedRecord(str(error), row=row, offset=at + row, text=text) from error
        yield rows

    def _shifted(self, batch: pa.RecordBatch, cycle: int) -> pa.RecordBatch:
        if cycle == 0:
            return batch
        shift = pa.scalar(cycle * self.cycle_shift_ms, pa.duration("ms"))
        arrays = [
            pc.add(array, shift).cast(array.type) if pa.types.is_timestamp(array.type) else array
            for array in batch.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _bounds(metadata: pq.FileMetaData) -> list[int]:
    """For each row group, the number of records up to its end."""
    groups = range(metadata.num_row_groups)
    return list(accumulate(metadata.row_group(group).num_rows for group in groups))


@lru_cache(CACHED_ROW_GROUPS)
def _row_group_bounds(file: Path) -> list[int]:
    return _bounds(pq.read_metadata(file))


@lru_cache(CACHED_ROW_GROUPS)
def _timestamps_ms(file: Path, column: str, group: int) -> npt.NDArray[np.int64]:
    with pq.ParquetFile(file) as parquet:
        table = parquet.read_row_group(group, columns=[column], use_threads=False)
    times = table.column(column).cast(pa.int64())
    # A record without time is refused when it is read; for pacing, its neighbour's time is enough.
    known = pc.fill_null(pc.fill_null_forward(pc.fill_null_backward(times)), 0)
    return np.asarray(known)
