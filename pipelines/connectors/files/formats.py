"""How `ExactlyOnceFiles` puts tables into a file: as Parquet, or as lines of JSON.

Knows neither names nor directories nor when a file becomes visible.

A file that is digested while it is written, and survives a loss of power once closed.
"""

import os
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors.json_rows import has_json, json_lines_of
from pipelines.disk.files import RunningDigest
from pipelines.domain.errors import Rejected


class DigestedFile:
    """File-like, for the code that writes the contents. Every call raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = RunningDigest()
        self._file = path.open("wb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, piece: bytes | memoryview) -> int:
        view = memoryview(piece).cast("B")
        self.digest.update(view)
        return self._file.write(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def close_durably(self) -> None:
        """Also raises when the disk has taken less than it reported."""
        self._file.flush()
        os.fsync(self._file.fileno())
        found_bytes = os.fstat(self._file.fileno()).st_size
        self._file.close()
        if found_bytes != self.digest.length:
            raise OSError(f"{self.path} has {found_bytes} bytes instead of {self.digest.length}")


class TableWriter(Protocol):
    """Writes tables into a file; the caller closes the file."""

    def write_table(self, table: pa.Table) -> None:
        """Raises OSError."""
        ...

    def close(self) -> None:
        """Hands everything that is left to the file."""
        ...


class FileFormat(Protocol):
    """Immutable; safe to build in every process."""

    @property
    def suffix(self) -> str:
        """With its dot; one of `file_target.SUFFIXES`."""
        ...

    def check_storable(self, column: pa.Field) -> None:
        """Raises Rejected naming the column that the format cannot hold."""
        ...

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter: ...


class Parquet:
    """A table becomes a row group."""

    suffix = ".parquet"

    def check_storable(self, column: pa.Field) -> None:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])).close()
        except pa.ArrowException as error:
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be stored as Parquet."
            ) from error

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter:
        writer: TableWriter = pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema)
        return writer


class JsonLines:
    """A row becomes an object on a line of its own, with every column, null or not."""

    suffix = ".jsonl"

    def check_storable(self, column: pa.Field) -> None:
        if not has_json(column.type):
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be stored as JSON lines."
            )

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter:
        return _JsonLinesWriter(file)


PARQUET = Parquet()
JSON_LINES = JsonLines()


class _JsonLinesWriter:
    def __init__(self, file: DigestedFile) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        self._file.write(json_lines_of(table))

    def close(self) -> None:
        """A line holds nothing back."""
