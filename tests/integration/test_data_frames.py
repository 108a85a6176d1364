"""Any DataFrame as a source: stored once in files, then read from these as Spark's own rows."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipelines.connectors import DataFrameRows
from pipelines.domain.errors import Rejected
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.spark.stage import SparkStageHost

pytestmark = pytest.mark.spark

ROWS = 3_000
TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema([("a.key", pa.int32()), ("at", TIME), ("text", pa.string())])


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session in a time zone other than UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    return spark


def test_rows_of_a_data_frame_are_read_in_event_time_and_reread_unchanged(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = DataFrameRows(views, tmp_path / "rows", schema=SCHEMA, timestamp_column="at")
    host = SparkStageHost(spark, lambda event: None)

    assert host.keep_rows(source) == ROWS

    reader = reader_of(source)
    first = reader.next()
    point = reader.positions()
    everything = [*rows_of(first), *rest_of(reader)]
    assert sorted(everything) == [(key, 1_000_000 - key, f"t{key}") for key in range(ROWS)]
    assert max(number_of(path) for path in files_of(source)) == 2  # three partitions, in turn
    by_file = [pq.read_table(path)["at"].to_pylist() for path in files_of(source)]
    assert all(times == sorted(times) for times in by_file)

    host.keep_rows(DataFrameRows(lambda s: views(s).limit(1), source.directory, schema=SCHEMA))
    again = [*rows_of(first), *rest_of(reader_of(source, point))]
    assert again == everything


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        (lambda s: s.range(3), "has no column a.key"),
        (lambda s: s.read.parquet("/nowhere"), "cannot be made: .*PATH_NOT_FOUND"),
        (lambda s: [1, 2], "returned list, not a DataFrame"),
        (
            lambda s: views(s).selectExpr("cast(`a.key` as string) `a.key`", "at", "text"),
            "Column a.key of the DataFrame for .* is string, not int32; cast it",
        ),
        (
            lambda s: views(s).selectExpr(
                "`a.key`", "at", "concat(text, raise_error('oops')) text"
            ),
            "could not be written: .*oops",
        ),
    ],
)
def test_a_data_frame_that_does_not_fit_or_fails_is_refused_in_a_sentence(
    spark: SparkSession,
    tmp_path: Path,
    load: Callable[[SparkSession], object],
    sentence: str,
) -> None:
    source = DataFrameRows(load, tmp_path / "rows", schema=SCHEMA)

    with pytest.raises(Rejected, match=sentence):
        SparkStageHost(spark, lambda event: None).keep_rows(source)

    assert not source.has_rows


def views(session: SparkSession) -> DataFrame:
    return session.range(0, ROWS, 1, 3).selectExpr(
        "cast(id as int) `a.key`", "timestamp_millis(1000000 - id) at", "concat('t', id) text"
    )


def reader_of(source: DataFrameRows, *restored: object) -> DirectReader:
    return DirectReader(
        source=source,
        restored=restored,
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )


def rest_of(reader: DirectReader) -> list[tuple[int, int, str]]:
    rows: list[tuple[int, int, str]] = []
    while not reader.is_exhausted:
        batch = reader.next()
        rows += [] if batch is None else rows_of(batch)
    reader.close()
    return rows


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, int, str]]:
    columns = [batch.column("a.key"), batch.column("at").cast(pa.int64()), batch.column("text")]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def files_of(source: DataFrameRows) -> list[Path]:
    return sorted((source.directory / "rows-1").glob("*.parquet"))


def number_of(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])
