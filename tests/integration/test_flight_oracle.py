"""The batch query that checks the pipeline: right on rows counted by hand, and strict.

The demonstration's check, `test_demo_check.py`, runs it as a process of its own.
"""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipelines.connectors import SqlUpsert
from pipelines.connectors.contract import SinkContext
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.spark.flight_oracle import verdict

pytestmark = [pytest.mark.slow, pytest.mark.spark]

TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
ELEVEN = TEN + timedelta(hours=1)
FLIGHTS = [  # carrier, origin, dep_delay, time_hour
    ("UA", "EWR", 2.0, TEN),
    ("UA", "JFK", 6.0, TEN),
    ("UA", "EWR", None, TEN),  # it did not depart
    ("UA", "EWR", 1.0, ELEVEN),
    ("AA", "LGA", 5.0, TEN),  # no reading
]
WEATHER = [  # origin, wind_speed, visib, time_hour
    ("EWR", 10.0, 9.0, TEN),
    ("EWR", 20.0, 9.0, TEN),  # a second reading in the hour: every pair counts
    ("JFK", None, 3.0, TEN),
    ("EWR", 4.0, 10.0, ELEVEN),
]
ANSWER = [  # carrier, window_start, flights, mean and max delay, mean wind and visibility
    ("UA", TEN, 3, 10.0 / 3, 6.0, 15.0, 7.0),
    ("UA", ELEVEN, 1, 1.0, 1.0, 4.0, 10.0),
]
SCHEMA = pa.schema(
    [
        ("carrier", pa.string()),
        ("window_start", pa.timestamp("ms", tz="UTC")),
        ("flights", pa.int64()),
        ("mean_dep_delay", pa.float64()),
        ("max_dep_delay", pa.float64()),
        ("mean_wind_speed", pa.float64()),
        ("mean_visib", pa.float64()),
    ]
)
EXACT = {"missing": 0, "duplicated": 0, "different": 0}


def test_the_right_answer_is_exact_despite_hidden_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "out" / ".prepared-x.parquet", ANSWER)
    write(tmp_path / "out" / "_superseded" / "run" / "part-x.parquet", ANSWER)

    found = asked(spark, tmp_path, files=[ANSWER[:1], ANSWER[1:]], table=ANSWER)

    assert found["rows_expected"] == 2
    assert counted(found["files"]) == EXACT
    assert counted(found["sql"]) == EXACT


def test_missing_doubled_and_different_rows_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    other = (*ANSWER[0][:5], 15.0000001, 7.0)

    found = asked(spark, tmp_path, files=[ANSWER, ANSWER[1:]], table=[other])

    assert counted(found["files"]) == EXACT | {"duplicated": 1}
    assert counted(found["sql"]) == EXACT | {"missing": 1, "different": 1}
    assert len(found["sql"]["sample_differences"]) == 1


def asked(spark: SparkSession, home: Path, *, files: list[list[tuple]], table: list[tuple]) -> dict:
    write_input(home)
    for index, rows in enumerate(files):
        write(home / "out" / f"part-{index}.parquet", rows)
    fill_table(home / "out.sqlite", table)
    return verdict(spark, home / "data", home / "out", home / "out.sqlite")


def counted(comparison: dict) -> dict:
    return {name: comparison[name] for name in EXACT}


def write_input(home: Path) -> None:
    names = ["carrier", "origin", "dep_delay", "time_hour"]
    columns = dict(zip(names, zip(*FLIGHTS, strict=True), strict=True))
    write_table(home / "data" / "flights" / "a.parquet", pa.table(columns))
    names = ["origin", "wind_speed", "visib", "time_hour"]
    columns = dict(zip(names, zip(*WEATHER, strict=True), strict=True))
    write_table(home / "data" / "weather" / "a.parquet", pa.table(columns))


def fill_table(file: Path, rows: list[tuple]) -> None:
    sink = SqlUpsert(
        f"sqlite:///{file}", "flight_delays", ("carrier", "window_start"), pipeline="test"
    )
    writer = sink.open(SinkContext(RunId("run"), Attempt(1), Uid("out"), 0, 1), SCHEMA)
    writer.write(batch(rows))
    writer.prepare(CheckpointId(1))
    writer.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select count(*) from flight_delays").fetchone() == (len(rows),)


def write(file: Path, rows: list[tuple]) -> None:
    write_table(file, pa.Table.from_batches([batch(rows)]))


def write_table(file: Path, table: pa.Table) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)


def batch(rows: list[tuple]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(v, f.type) for v, f in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)
