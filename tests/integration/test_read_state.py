"""State of a savepoint as a Spark DataFrame, against the same files read by pandas."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.spark import read_state
from pipelines.spark.session import open_session
from tests.unit.points.stored_views import savepoint_of_views, write_events

pytestmark = pytest.mark.spark

KEYS = 1_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session("local[2]", "read state")
    yield session
    session.stop()


def test_state_in_either_format_is_a_data_frame_with_the_rows_that_pandas_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_events(tmp_path / "data")
    canonical = savepoint_of_views(tmp_path / "canonical", data, keys=KEYS)
    native = savepoint_of_views(tmp_path / "native", data, keys=KEYS, is_canonical=False)

    frames = [read_state(spark, str(path), "views", "totals") for path in (canonical, native)]

    by_pandas = pd.concat([pd.read_parquet(file) for file in canonical.glob("*.parquet")])
    expected = by_pandas.sort_values("app_id").reset_index(drop=True)
    for frame in frames:
        assert frame.rdd.getNumPartitions() == 2  # a task for each subtask's file
        found = frame.toPandas().sort_values("app_id").reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert expected["app_id"].tolist() == list(range(KEYS))
    assert list(expected.columns) == ["app_id", "pv__count", "__key_group"]


def test_what_is_not_there_is_refused_with_what_there_is_and_damage_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    point = savepoint_of_views(tmp_path, write_events(tmp_path / "data"))
    second = sorted(point.glob("*.parquet"))[1]
    frame = read_state(spark, str(point), "views", "totals")

    with pytest.raises(Rejected, match=r"no operator 'view' in .*; it has 'events', 'views'"):
        read_state(spark, str(point), "view", "totals")
    with pytest.raises(
        Rejected, match=r"no rows in a state 'total' in .*; it has rows in 'totals'"
    ):
        read_state(spark, str(point), "views", "total")
    with pytest.raises(CorruptSnapshot, match=r"nowhere/manifest\.json is missing"):
        read_state(spark, str(tmp_path / "nowhere"), "views", "totals")
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(PythonException, match=second.name):
        frame.count()
