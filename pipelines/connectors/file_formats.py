"""How `ExactlyOnceFiles` puts tables into a file: as Parquet, or as lines of JSON.

Knows neither names nor directories nor when a file becomes visible. In JSON times are ISO 8601 in
UTC, decimals and dates text, binary base64; NaN and infinity, which JSON lacks, are null.
"""

from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors.text_columns import iso_times
from pipelines.domain.errors import Rejected


class OpenFile(Protocol):
    """A file being written."""

    def write_table(self, table: pa.Table) -> None:
        """Raises OSError."""
        ...

    def close(self) -> None:
        """What was written has been handed to the operating system; not yet synced."""
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

    def open(self, path: Path, schema: pa.Schema) -> OpenFile: ...


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

    def open(self, path: Path, schema: pa.Schema) -> OpenFile:
        writer: OpenFile = pq.ParquetWriter(path, schema)
        return writer


class JsonLines:
    """A row becomes an object on a line of its own, with every column, null or not."""

    suffix = ".jsonl"

    def check_storable(self, column: pa.Field) -> None:
        if not _has_json(column.type):
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be stored as JSON lines."
            )

    def open(self, path: Path, schema: pa.Schema) -> OpenFile:
        return _JsonLinesFile(path)


PARQUET = Parquet()
JSON_LINES = JsonLines()


class _JsonLinesFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write_table(self, table: pa.Table) -> None:
        for index, column in enumerate(table.schema):
            if pa.types.is_timestamp(column.type):
                table = table.set_column(index, column.name, iso_times(table.column(index)))
        self._file.write(self._encoder.encode_lines(table.to_pylist()))

    def close(self) -> None:
        self._file.close()


def _has_json(type_: pa.DataType, *, nested: bool = False) -> bool:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _has_json(type_.value_type, nested=True)
    if pa.types.is_struct(type_):
        return all(_has_json(field.type, nested=True) for field in type_)
    if pa.types.is_timestamp(type_):
        return not (nested and type_.unit == "ns")  # no such time in Python
    return any(is_one(type_) for is_one in _PLAIN)


_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
)
