"""Source: a directory that receives complete files during the run, a split per file.

Finds the files and checks that each is unchanged since it was found; the format's source reads
them. A file has to appear whole, by a rename. A file that changes later is refused by name, because
part of it may have been read. Names that begin with a dot or an underscore are ignored. Source:
Flink's `FileSource.monitorContinuously`.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from pipelines.connectors.files.csv import CsvFiles
from pipelines.connectors.files.input_files import file_version
from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.files.parquet import ParquetFiles
from pipelines.connectors.source import Batch, Source
from pipelines.connectors.split_progress import SplitProgress, owner_by_name
from pipelines.domain.errors import Rejected, Retryable

LOOK_EVERY = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class GrowingDirectory:
    """The files of a directory, including those that appear during the run; each is a split.

    Files found together are read in the order of their names, files found later after them.

    Args:
        directory: where files appear, whole and under their final names.
        suffix: how the names of the files end, such as `.csv`.
        schema: the columns.
        format_of: makes the source of one file.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        concurrent_splits: how many files a subtask reads side by side.
        look_every: how often to look for new files, as a `timedelta`. None: only at the start.
        read_before: names of files that another query has read already. They are left out for good;
            `manage.py watch move` writes those of a Structured Streaming query.
    """

    directory: Path
    _: KW_ONLY
    suffix: str
    schema: pa.Schema
    format_of: Callable[[Path], Source]
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    concurrent_splits: int = 1
    look_every: timedelta | None = LOOK_EVERY
    read_before: Collection[str] = ()

    @property
    def discovery_interval_ms(self) -> int | None:
        return None if self.look_every is None else self.look_every // timedelta(milliseconds=1)

    def validate(self) -> None:
        try:
            files = self._files()
        except FileNotFoundError as error:
            raise Rejected(f"The input directory {self.directory} does not exist.") from error
        except OSError as error:
            problem = f"cannot be listed: {error.strerror}"
            raise Rejected(f"The input directory {self.directory} {problem}.") from error
        for file in files:
            self.format_of(file).validate()

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        if self.look_every is None and not is_start:
            return []
        try:
            left_out = {*known, *self.read_before}
            new = [file for file in self._files() if file.name not in left_out]
            return [SplitProgress(f.name, version=file_version(f, f.name)) for f in new]
        except OSError as error:
            raise Retryable(f"Listing {self.directory} failed: {error}") from error
        except Rejected as error:
            raise Retryable(f"{error} It vanished while files were looked for.") from error

    def owner(self, name: str, parallelism: int) -> int:
        return owner_by_name(name, parallelism)

    def oldest(self, split: SplitProgress) -> int:
        if file_version(self.directory / split.name, split.name) != split.version:
            raise Rejected(
                f"The input file {self.directory / split.name} has changed since it was found; put"
                " only complete files into the directory, each under a name of its own."
            )
        return 0

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return f"The records {split.offset:,} to {oldest - 1:,} of {split.name} are gone."

    def open(self) -> "GrowingDirectory":
        return self

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        return self.format_of(self.directory / split.name).read(0, split.offset)

    def close(self) -> None:
        pass  # each file is closed when it is read

    def _files(self) -> list[Path]:
        """Raises OSError if the directory cannot be listed; `Path.glob` would report no files."""
        with os.scandir(self.directory) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(self.suffix)]
        return [self.directory / name for name in sorted(names) if name[0] not in "._"]


def parquet_directory(
    directory: Path | str,
    *,
    schema: pa.Schema,
    timestamp_column: str | None = None,
    out_of_orderness_ms: int = 0,
    concurrent_splits: int = 1,
    look_every: timedelta | None = LOOK_EVERY,
    read_before: Collection[str] = (),
) -> GrowingDirectory:
    """Parquet files that appear in a directory while the pipeline runs.

    Args:
        directory: where complete files appear, each under a name of its own.
        schema: the columns of the rows.
        timestamp_column: the column of event time; None: the rows have no event time.
        out_of_orderness_ms: how many milliseconds a row may lie behind a newer one of its split.
        concurrent_splits: how many files a subtask reads at a time.
        look_every: how often to look for new files; None: only at the start.
        read_before: names of files to leave out, because another query has read them.

    Raises Rejected, when the pipeline is built or started, naming what cannot be read.
    """
    return GrowingDirectory(
        Path(directory),
        suffix=".parquet",
        schema=schema,
        format_of=lambda file: ParquetFiles(
            (file,), schema=schema, timestamp_column=timestamp_column
        ),
        timestamp_column=timestamp_column,
        out_of_orderness_ms=out_of_orderness_ms,
        concurrent_splits=concurrent_splits,
        look_every=look_every,
        read_before=read_before,
    )


def json_lines_directory(
    directory: Path | str,
    *,
    schema: pa.Schema,
    timestamp_column: str | None = None,
    out_of_orderness_ms: int = 0,
    concurrent_splits: int = 1,
    look_every: timedelta | None = LOOK_EVERY,
    read_before: Collection[str] = (),
) -> GrowingDirectory:
    """Files with one JSON object in each line (`.jsonl`) that appear while the pipeline runs.

    Args:
        directory: where complete files appear, each under a name of its own.
        schema: the columns of the rows.
        timestamp_column: the column of event time; None: the rows have no event time.
        out_of_orderness_ms: how many milliseconds a row may lie behind a newer one of its split.
        concurrent_splits: how many files a subtask reads at a time.
        look_every: how often to look for new files; None: only at the start.
        read_before: names of files to leave out, because another query has read them.

    Raises Rejected, when the pipeline is built or started, naming what cannot be read.
    """
    return GrowingDirectory(
        Path(directory),
        suffix=".jsonl",
        schema=schema,
        format_of=lambda file: JsonLinesFiles(
            (file,), schema=schema, timestamp_column=timestamp_column
        ),
        timestamp_column=timestamp_column,
        out_of_orderness_ms=out_of_orderness_ms,
        concurrent_splits=concurrent_splits,
        look_every=look_every,
        read_before=read_before,
    )


def csv_directory(
    directory: Path | str,
    *,
    schema: pa.Schema,
    file_columns: Sequence[str] | None = None,
    look_every: timedelta | None = LOOK_EVERY,
    read_before: Collection[str] = (),
) -> GrowingDirectory:
    """CSV files without header lines that appear while the pipeline runs; they have no event time.

    Args:
        directory: where complete files appear, each under a name of its own.
        schema: the columns of the rows.
        file_columns: the columns in the files, in their order, as in `CsvFiles`.
        look_every: how often to look for new files; None: only at the start.
        read_before: names of files to leave out, because another query has read them.

    Raises Rejected, when the pipeline is built or started, naming what cannot be read.
    """
    return GrowingDirectory(
        Path(directory),
        suffix=".csv",
        schema=schema,
        format_of=lambda file: CsvFiles((file,), schema=schema, file_columns=file_columns),
        look_every=look_every,
        read_before=read_before,
    )
