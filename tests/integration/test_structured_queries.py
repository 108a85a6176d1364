"""Queries of real Spark: read, judged, saved, rewound, browsed, and repartitioned."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.connectors import json_lines_directory
from pipelines.domain.errors import Rejected
from pipelines.local import run_local
from pipelines.spark.structured import (
    StateAddress,
    fork_repartitioned,
    state_difference,
    state_rows,
)
from pipelines.storage.trees import LocalTree
from pipelines.stream import Environment
from pipelines.structured.directory import read_query, read_tree
from pipelines.structured.doctor import CLOCK_SLACK_MS, examine
from pipelines.structured.findings import Kind
from pipelines.structured.fork import ForkRequest, begin_output, fork
from pipelines.structured.moving import move_behind
from pipelines.structured.recovery import recovery_points, verify
from tests.brokers.kafka_broker import KafkaBroker
from tests.java_programs import ProgramMissing
from tests.polling import wait_until
from tests.structured_rewinds.kafka import add_connector
from tests.structured_rewinds.queries import HDFS, ROCKSDB, Input, Query, StoreSetting, configure
from tests.structured_rewinds.rewinds import rewind, story_of

pytestmark = pytest.mark.spark

FILE_ROWS = 7
COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
SEEDS = (7220, 19, 862)
"""An aggregation on the HDFS-backed store, and two joins on RocksDB, one in each format. These
seeds have few batches, which take most of the time. To run more: `python -m
tests.structured_rewinds --sources file rate --seeds 200`."""

KAFKA_SEEDS = (3762, 3148)
"""An aggregation on the HDFS-backed store, and a join on RocksDB in format 2, with few batches. To
run more: `python -m tests.structured_rewinds --sources kafka --seeds 200`."""

STORES = {"hdfs": HDFS, "rocksdb": StoreSetting(ROCKSDB, 1), "rocksdb2": StoreSetting(ROCKSDB, 2)}


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    configure(spark)
    return spark


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fork_equals_a_query_that_never_took_the_wrong_turn(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    ending = rewind(spark, story_of(seed, ("file", "rate")), tmp_path)

    assert ending.is_right, ending


@pytest.mark.parametrize("seed", KAFKA_SEEDS)
def test_a_fork_of_a_query_that_reads_kafka_equals_one_that_never_took_the_wrong_turn(
    spark: SparkSession, kafka_server: KafkaBroker, tmp_path: Path, seed: int
) -> None:
    try:
        add_connector(spark)
    except ProgramMissing as why:
        pytest.skip(str(why))
    story = story_of(seed, ("kafka",))

    ending = rewind(spark, story, tmp_path, kafka_server)

    assert story.source == "kafka"
    assert ending.is_right, ending


@pytest.mark.parametrize("store", ["hdfs", "rocksdb2"])
def test_a_real_directory_is_healthy_and_a_manual_rewind_is_caught(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    """The test deletes the newer offsets and commits, as people do."""
    STORES[store].apply(spark)
    query = query_in(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    query.run(spark, checkpoint, shift=0, until=3)

    healthy = read_query(str(checkpoint), [str(tmp_path)])
    files = verify(LocalTree(checkpoint), healthy, healthy.by_id[2])

    assert examine(healthy) == ()
    assert files.problems == ()
    assert files.read_bytes > 0

    rewind_by_hand(checkpoint, to_batch=1)
    found = {each.kind for each in examine(read_query(str(checkpoint), [str(tmp_path)]))}

    assert found == {Kind.ABANDONED_STATE, Kind.SOURCE_LOG_AHEAD}


def test_a_manual_rewind_that_ran_on_mixes_timelines_and_a_fork_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """State of the abandoned batch 3 still exists when batch 3 is planned again."""
    HDFS.apply(spark)
    query = query_in(tmp_path, "rate")
    checkpoint, safe = tmp_path / "checkpoint", tmp_path / "fork"
    query.run(spark, checkpoint, shift=0, until=3)
    original = LocalTree(checkpoint)
    fork(original, read_tree(original), LocalTree(safe), ForkRequest(batch_id=1))

    rewind_by_hand(checkpoint, to_batch=1)
    wait_until(lambda: 1_000 * (time.time() - newest_s(checkpoint / "state")) > CLOCK_SLACK_MS)
    query.run(spark, checkpoint, shift=100, until=2)
    found = {each.kind for each in examine(read_query(str(checkpoint), [str(tmp_path)]))}
    query.run(spark, safe, shift=100, until=2)

    assert found - {Kind.ABANDONED_STATE} == {Kind.MIXED_TIMELINES}
    assert examine(read_query(str(safe), [str(tmp_path)])) == ()


def test_a_pipeline_continues_after_a_query_without_loss_or_repetition(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox, checkpoint, output = (tmp_path / name for name in ("inbox", "checkpoint", "out"))
    files_into(inbox, range(4))
    run_into_files(spark, inbox, checkpoint, output)
    files_into(inbox, range(4, 6))
    written = values_in(spark, output)
    tree = LocalTree(checkpoint)
    query = read_tree(tree)

    for behind in (1, 3):  # in the middle, and the newest batch
        (start,) = move_behind(tree, query, behind).sources
        env = Environment()
        source = json_lines_directory(
            inbox,
            schema=pa.schema([("value", pa.int64())]),
            look_every=None,
            read_before=start.read_before,
        )
        env.source(source, uid="in").collect(uid="out")
        read_by_us = run_local(env.build()).table()["value"].to_pylist()

        committed = [value for value in written if value // FILE_ROWS <= behind]
        assert len(committed) == (behind + 1) * FILE_ROWS  # a file per batch
        assert sorted(committed + read_by_us) == list(range(6 * FILE_ROWS))


def test_the_file_sink_of_a_fork_continues_elsewhere_past_its_compactions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches 2, 5 and 8 compact the log of the sink; the last one is always one of the fork."""
    inbox, checkpoint, output = (tmp_path / name for name in ("inbox", "checkpoint", "out"))
    spark.conf.set(COMPACT_INTERVAL, "3")
    try:
        files_into(inbox, range(7))
        run_into_files(spark, inbox, checkpoint, output)
        tree = LocalTree(checkpoint)
        query = read_tree(tree, LocalTree(output))
        files_into(inbox, range(7, 9))
        for behind in (1, 3, 5):  # no compaction yet, one before, and the second one itself
            home, new = tmp_path / f"fork-{behind}", tmp_path / f"new-{behind}"
            fork(tree, query, LocalTree(home), ForkRequest(batch_id=behind))
            begin_output(query, LocalTree(output), LocalTree(new), behind, newest=behind)
            run_into_files(spark, inbox, home, new)

            written = values_in(spark, new)
            assert written == list(range((behind + 1) * FILE_ROWS, 9 * FILE_ROWS))
    finally:
        spark.conf.unset(COMPACT_INTERVAL)


def test_state_is_browsed_compared_and_repartitioned(spark: SparkSession, tmp_path: Path) -> None:
    STORES["rocksdb"].apply(spark)
    query = query_in(tmp_path)
    checkpoint, wide = tmp_path / "checkpoint", tmp_path / "wide"
    seen = query.run(spark, checkpoint, shift=0, until=3)
    early = StateAddress(location=str(checkpoint), batch_id=1)
    late = StateAddress(location=str(checkpoint), batch_id=3)

    rows = [(r["key"]["k"], *r["value"]) for r in state_rows(spark, late).collect()]
    lost, gained = state_difference(spark, early, late)

    assert sorted((k, n) for k, n, _ in rows) == [(k, n) for k, n, _ in seen[3]]
    assert {r["key"]["k"] for r in gained.collect()} == {2, 3, 4, 5}
    assert {r["key"]["k"] for r in lost.collect()} == {2}

    tree = LocalTree(checkpoint)
    made = fork_repartitioned(
        spark, tree, read_tree(tree), LocalTree(wide), ForkRequest(batch_id=3), partitions=3
    )
    further = query.run(spark, wide, shift=0, until=4)
    same = query.run(spark, checkpoint, shift=0, until=4)

    assert made.next_batch == 5
    dealt = read_tree(LocalTree(wide))
    assert (dealt.batches[-1].shuffle_partitions, examine(dealt)) == (3, ())
    assert [point.is_complete for point in recovery_points(dealt)[-2:]] == [True, True]
    assert further[max(further)] == same[max(same)]
    with pytest.raises(Rejected, match="Spark cannot read the state of operator 7"):
        state_rows(spark, StateAddress(location=str(wide), batch_id=3, operator_id=7)).count()


def files_into(inbox: Path, numbers: range) -> None:
    """Writes the files with times that give the order in which Spark reads them."""
    inbox.mkdir(exist_ok=True)
    for number in numbers:
        values = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        path = inbox / f"{number:04}.jsonl"
        path.write_text("".join(f'{{"value": {value}}}\n' for value in values))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run_into_files(spark: SparkSession, inbox: Path, checkpoint: Path, output: Path) -> None:
    """Writes the rows of all files that the query has not read; each file is a batch."""
    rows = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1).json(str(inbox))
    sink = rows.writeStream.format("json").trigger(availableNow=True)
    sink.option("checkpointLocation", str(checkpoint)).start(str(output)).awaitTermination()


def values_in(spark: SparkSession, output: Path) -> list[int]:
    """Returns the values of all rows that readers find in the output."""
    return sorted(row["value"] for row in spark.read.json(str(output)).collect())


def query_in(home: Path, kind: str = "file") -> Query:
    folder = home / "input"
    folder.mkdir()
    source = Input(kind, folder / "left")
    return Query("aggregation", source, source)


def newest_s(directory: Path) -> float:
    """Returns when a file below the directory was last written, in seconds since the epoch."""
    return max(path.stat().st_mtime for path in directory.rglob("*"))


def rewind_by_hand(checkpoint: Path, to_batch: int) -> None:
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            if file.name.isdigit() and int(file.name) > to_batch:
                file.unlink()
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
