"""State of a savepoint as a Spark DataFrame, compared with pandas reading the same files."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from pipelines.bus.inbox import Inbox, submit
from pipelines.bus.lease import Lease
from pipelines.domain.commands import Cancel, VerifyPoints
from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.run import RunDirectory
from pipelines.domain.snapshots import StateFormat
from pipelines.points.browsing import rows_of
from pipelines.spark import read_state
from pipelines.spark.data_frames import handles_of
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.object_store import ObjectCheckpointStore
from tests.contracts.held_points import OPERATOR_STATE, STATES, USERS, hold
from tests.object_server import ObjectServer, never
from tests.processes.host import hosted_run
from tests.processes.numbers import HELD_AT
from tests.unit.points.stored_views import savepoint_of_views, write_events

pytestmark = pytest.mark.spark

KEYS = 1_000
STEP_S = 30.0


def test_state_in_either_format_is_read_with_the_same_rows_as_by_pandas(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_events(tmp_path / "data")
    canonical = savepoint_of_views(tmp_path / "canonical", data, keys=KEYS)
    native = savepoint_of_views(tmp_path / "native", data, keys=KEYS, is_canonical=False)

    frames = [read_state(spark, str(path), "views", "totals") for path in (canonical, native)]

    by_pandas = pd.concat([pd.read_parquet(file) for file in canonical.glob("*.parquet")])
    expected = by_pandas.sort_values("app_id").reset_index(drop=True)
    for frame in frames:
        assert frame.rdd.getNumPartitions() == 2  # one task for each subtask's file
        found = frame.toPandas().sort_values("app_id").reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert expected["app_id"].tolist() == list(range(KEYS))
    assert list(expected.columns) == ["app_id", "pv__count", "__key_group"]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_an_incremental_checkpoint_of_either_backend_is_read_as_a_data_frame(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    settings = {
        "state.backend.type": backend,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    # Several checkpoints change something, and the last one is in the middle of a window.
    slowly = {"pause_ms": "30", "held_at": str(HELD_AT)}
    with hosted_run(tmp_path, slowly, settings=settings) as run:
        run.wait_until_cut_at(HELD_AT, STEP_S)
        asked = {"request_id": RequestId("end"), "requested_by": "ada", "reason": "test"}
        submit(run.directory, Cancel(**asked))
        run.wait_until_over(STEP_S)
    path = run.completed()[-1].path
    handles = handles_of(store_at(path).manifest(path), path, "totals", "windows")

    found = read_state(spark, path, "totals", "windows").toPandas()

    batches = [b for handle in handles for b in rows_of(store_at(path), path, handle)]
    expected = pa.Table.from_batches(batches).to_pandas()
    order = ["window_start", "key"]
    found["window_start"] = found["window_start"].astype("datetime64[us]")
    expected["window_start"] = expected["window_start"].dt.tz_localize(None)
    pd.testing.assert_frame_equal(
        found.sort_values(order).reset_index(drop=True),
        expected.sort_values(order).reset_index(drop=True),
        check_dtype=False,
    )
    assert len(found) == sum(handle.rows for handle in handles) > 0
    assert any(handle.format is not StateFormat.ROWS for handle in handles)


def test_a_native_savepoint_of_rocksdb_in_an_object_store_is_read_state_by_state(
    spark: SparkSession, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors fetch the databases themselves, with the credentials in their own environment."""
    objects.plan(never)
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    root = objects.new_root()
    point = hold(ObjectCheckpointStore([root]), root, "native rocksdb")

    found = {
        state: read_state(spark, point.location, STATES, state).select(*columns).collect()
        for state, columns in (
            ("list", ["key", "list"]),
            ("map", ["key", "map_key", "map"]),
            (OPERATOR_STATE, ["seen"]),
        )
    }

    assert any(file.name.endswith(".sst") for file in point.files_of("map"))
    assert sorted(found["list"]) == [(key, 10 * key) for key in range(USERS)]
    assert sorted(found["map"]) == [(key, key, 20 * key) for key in range(USERS)]
    assert sorted(found[OPERATOR_STATE]) == [(key,) for key in range(USERS)]


def test_an_unknown_state_is_refused_with_the_known_ones_and_damage_is_named(
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


@pytest.mark.parametrize("damaged", ["rows", "manifest"])
def test_a_reader_that_finds_damage_asks_the_running_driver_to_read_the_point(
    spark: SparkSession, tmp_path: Path, damaged: str
) -> None:
    """Executors find damaged rows; the process that calls `read_state` finds a damaged manifest."""
    home = tmp_path / "views"
    point = savepoint_of_views(home / "savepoints", write_events(tmp_path / "data"))
    run = RunDirectory(home / "runs" / "run-1")
    with Lease.acquire(run):
        run.spec_file.touch()
        frame = read_state(spark, str(point), "views", "totals")
        before = Inbox(run).pending()
        file = max(point.glob("*.parquet")) if damaged == "rows" else point / "manifest.json"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(PythonException if damaged == "rows" else CorruptSnapshot):
            frame.count() if damaged == "rows" else read_state(spark, str(point), "views", "totals")

    [command] = Inbox(run).pending()
    assert before == []
    assert isinstance(command, VerifyPoints)
    assert command.requested_by == "read_state"
    assert file.name in command.reason


def store_at(path: str) -> FileSystemCheckpointStore:
    """Opens the directory around the point too, because shared files are next to the point."""
    return FileSystemCheckpointStore([str(Path(path).parent)])
