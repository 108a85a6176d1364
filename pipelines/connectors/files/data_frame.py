"""Source: the rows of any Spark DataFrame, written to files once and read from there.

A DataFrame has no offsets, and a second evaluation may give other rows. So the driver writes it to
Parquet files before anything is read, and every attempt and every restore reads those files. A
point names the files, so a restore finds them again. This module owns where the files are and which
are the newest; `pipelines.spark` writes them. Source: Spark's `DataFrame.localCheckpoint`, for the
same reason.
"""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.connectors.files.growing_directory import GrowingDirectory, parquet_directory
from pipelines.connectors.files.input_files import (
    LISTING,
    file_version,
    read_listing,
    write_listing,
)
from pipelines.connectors.source import Batch
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import check_event_time
from pipelines.disk.files import FOR_ALL, make_directory, make_durable, replace_atomically
from pipelines.domain.errors import Rejected, Retryable

LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
"""Errors of a wrong directory or a missing permission; a restart would only meet them again."""

NEWEST = "_newest"
PREFIX, SUFFIX = "rows-", ".parquet"
ALL = 1 << 20
PASSING = "_passing"
"""Marks rows that may be deleted once no point names them; rows of older versions have no mark."""


@dataclass(frozen=True, slots=True)
class DataFrameRows:
    """The rows of a DataFrame: the driver calls `load` once, in a fresh start, and keeps its rows.

    The columns of `schema` are kept in `directory`, which all machines of the run see: one
    subdirectory `rows-1/`, `rows-2/`, ... for each start. Each stays until no point names it and a
    newer one exists. Bounded: the run ends after the last row.

    A partition of the DataFrame is a split. With event time, each partition is sorted by it, and a
    subtask reads its splits side by side, so that no row is late.

    Args:
        load: gets the run's SparkSession and returns the DataFrame.
        directory: where the rows are kept. All machines of the run have to see it.
        schema: the columns to keep.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
    """

    load: Callable[[Any], Any]
    directory: Path
    _: KW_ONLY
    schema: pa.Schema
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.timestamp_column)

    @property
    def concurrent_splits(self) -> int:
        return 1 if self.timestamp_column is None else ALL

    @property
    def discovery_interval_ms(self) -> int | None:
        return None

    def validate(self) -> None:
        """Checks the directory only; the contents of the DataFrame are known once Spark runs."""
        existing = next(p for p in self.directory.absolute().parents if p.exists())
        place = self.directory if self.directory.exists() else existing
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise Rejected(f"The rows of a DataFrame cannot be kept in {self.directory}.")

    @property
    def has_rows(self) -> bool:
        """True once a start has written rows there."""
        return (self.directory / NEWEST).exists()

    def begin(self) -> Path:
        """Makes a directory for the rows of one start; removes unfinished rows of earlier starts.

        Raises Rejected, and Retryable if the disk does not answer.
        """
        try:
            make_directory(self.directory)
            names = [name for name in os.listdir(self.directory) if name.startswith(PREFIX)]
            numbers = {_number_of(self.directory / name): self.directory / name for name in names}
            for unfinished in (path for path in numbers.values() if read_listing(path) is None):
                shutil.rmtree(unfinished)
            rows = self.directory / f"{PREFIX}{max(numbers, default=0) + 1}"
            rows.mkdir()
            (rows / PASSING).touch()
        except OSError as error:
            problem = (
                f"The rows of a DataFrame cannot be kept in {self.directory}: {error.strerror}."
            )
            raise (Rejected if error.errno in LASTING else Retryable)(problem) from error
        return rows

    def finish(self, rows: Path) -> None:
        """Call when all files are there and durable; from then on, a start reads them."""
        write_listing(rows)
        make_durable(rows)
        replace_atomically(self.directory / NEWEST, rows.name.encode(), FOR_ALL)
        make_durable(self.directory)

    def note_reader(self, name: str, text: bytes) -> None:
        """Notes that a run reads here, for the code that deletes rows. Raises OSError."""
        make_directory(self.notes)
        replace_atomically(self.notes / f"{name}.json", text, FOR_ALL)
        make_durable(self.notes)

    @property
    def notes(self) -> Path:
        return self.directory / "_runs"

    def earlier_rows(self) -> list[Path]:
        """Rows that points may still need, but no new start. Raises OSError and Retryable."""
        newest = self._newest()
        rows = self.directory.glob(f"{PREFIX}*")
        return sorted(each for each in rows if each.name != newest and (each / PASSING).exists())

    def forget(self, rows: Path) -> None:
        """Removes the listing first: if this is cut short, no run uses the rest. Raises OSError."""
        (rows / LISTING).unlink(missing_ok=True)
        shutil.rmtree(rows)

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        """Finds the splits of one start; a point that knows some gets the rest of that start."""
        if not is_start:
            return []
        rows = {rows_of(name) for name in known} or {self._newest()}
        names = [name for each in sorted(rows) for name in self._parts_of(each)]
        return [
            SplitProgress(name, version=file_version(self.directory / name, name))
            for name in names
            if name not in known
        ]

    def owner(self, name: str, parallelism: int) -> int:
        """Deals the partitions in turn, by their numbers."""
        return int(name.removesuffix(SUFFIX).rpartition("-")[2]) % parallelism

    def oldest(self, split: SplitProgress) -> int:
        return self._files.oldest(split)

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return self._files.range_gone(split, oldest)

    def open(self) -> "DataFrameRows":
        return self

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        return self._files.read(split)

    def close(self) -> None:
        pass  # each file is closed when it is read

    def _newest(self) -> str:
        try:
            return (self.directory / NEWEST).read_text()
        except OSError as error:
            raise Retryable(f"The rows in {self.directory} cannot be found: {error}") from error

    def _parts_of(self, rows: str) -> list[str]:
        listed = read_listing(self.directory / rows)
        if not rows or listed is None:
            raise Rejected(f"The rows of a DataFrame in {self.directory} have lost their listing.")
        return [f"{rows}/{file.name}" for file in listed]

    @property
    def _files(self) -> GrowingDirectory:
        return parquet_directory(
            self.directory, schema=self.schema, timestamp_column=self.timestamp_column
        )


def rows_of(split: str) -> str:
    """Returns the name of the split's directory, which is the first part of the split's name."""
    return split.partition("/")[0]


def name_of_part(number: int) -> str:
    return f"part-{number:05}{SUFFIX}"


def _number_of(rows: Path) -> int:
    number = rows.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else 0
