"""Small queries of real Spark whose results show whether their state is right.

Each batch has keys of its own and some of the batch before, so that a stale key or a lost key
changes the output of a later batch. `shift` is the change in the code. Later batches get, under the
changed code, the keys that the old code gave to the batches that a rewind abandons.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ftdash.supervision import java
from tests.structured_rewinds.kafka import Topic

STATE = "org.apache.spark.sql.execution.streaming.state."
ROWS = 20
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StoreSetting:
    provider: str
    format_version: int
    has_changelog: bool = False

    def apply(self, spark: SparkSession) -> None:
        prefix = "spark.sql.streaming.stateStore."
        spark.conf.set(f"{prefix}providerClass", STATE + self.provider)
        spark.conf.set(f"{prefix}checkpointFormatVersion", self.format_version)
        changelog = f"{prefix}rocksdb.changelogCheckpointing.enabled"
        spark.conf.set(changelog, str(self.has_changelog).lower())


HDFS = StoreSetting("HDFSBackedStateStoreProvider", 1)
ROCKSDB = "RocksDBStateStoreProvider"


PREFIX = "spark.sql.streaming."
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    f"{PREFIX}noDataMicroBatches.enabled": "false",
    f"{PREFIX}stateStore.minDeltasForSnapshot": "2",
    f"{PREFIX}stateStore.maintenanceInterval": "100ms",
    f"{PREFIX}fileSource.log.compactInterval": "3",
    f"{PREFIX}fileSource.log.cleanupDelay": "0",
    f"{PREFIX}pollingDelay": "1ms",
}


def configure(spark: SparkSession) -> None:
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)


def session() -> SparkSession:
    os.environ.update(java.environment(), PYSPARK_PYTHON=sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def end_maintenance(spark: SparkSession) -> None:
    """Ends the state maintenance of all queries so far, including writes in progress.

    Maintenance continues after a query has ended, and writes into open files even if they are
    moved. The next query starts it again.
    """
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


@dataclass(frozen=True, slots=True)
class Input:
    """A file source over `folder`, a Kafka topic, or Spark's source that counts up by batches."""

    kind: str
    folder: Path
    topic: Topic | None = None

    def offer(self, batches: range) -> None:
        """Adds one file or `ROWS` records for each batch. The times of files give their order."""
        if self.topic is not None:
            self.topic.offer(batches.stop * ROWS)
        if self.kind != "file":
            return
        self.folder.mkdir(exist_ok=True)
        for batch in batches:
            rows = (json.dumps({"value": batch * ROWS + row}) for row in range(ROWS))
            path = self.folder / f"{batch:04}.json"
            path.write_text("\n".join(rows))
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns rows whose `value` counts up and whose `t` is the event time."""
        if self.kind == "file":
            reader = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
            frame = reader.json(str(self.folder))
        elif self.topic is not None:
            text = self.topic.read(spark, ROWS)
            frame = text.select(F.col("value").cast("long").alias("value"))
        else:
            frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        return frame.select("value", F.timestamp_seconds(F.col("value") + 1_700_000_000).alias("t"))


def aggregation(rows: DataFrame, other: DataFrame, shift: int) -> DataFrame:
    keys = rows.select((F.floor(F.col("value") / 15) + shift).alias("k"), "value")
    return keys.groupBy("k").agg(F.count("*").alias("n"), F.sum("value").alias("s"))


def deduplication(rows: DataFrame, other: DataFrame, shift: int) -> DataFrame:
    return rows.select((F.floor(F.col("value") / 3) + 7 * shift).alias("k")).dropDuplicates(["k"])


def join(rows: DataFrame, other: DataFrame, shift: int) -> DataFrame:
    """Joins rows of the right side with rows that the left side had up to three batches before."""
    left = rows.select(F.col("value").alias("a"), (F.col("value") + 20 * shift).alias("k"))
    right = other.select(F.col("value").alias("b"), (F.col("value") - 30).alias("k"))
    return left.join(right, "k")


class Counting(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802
        self, key: Any, rows: Iterator[pd.DataFrame], timers: Any
    ) -> Iterator[pd.DataFrame]:
        before = self._count.get()[0] if self._count.exists() else 0
        count = before + sum(len(each) for each in rows)
        self._count.update((count,))
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def close(self) -> None:
        pass


def transform_with_state(rows: DataFrame, other: DataFrame, shift: int) -> DataFrame:
    keys = rows.select((F.floor(F.col("value") / 15) + shift).alias("k"), "value")
    return keys.groupBy("k").transformWithStateInPandas(
        Counting(), "k long, n long", "Update", "None"
    )


OPERATORS: dict[str, tuple[Callable[[DataFrame, DataFrame, int], DataFrame], str]] = {
    "aggregation": (aggregation, "complete"),
    "deduplication": (deduplication, "append"),
    "join": (join, "append"),
    "transformWithState": (transform_with_state, "update"),
}


@dataclass(frozen=True, slots=True)
class Query:
    operator: str
    input: Input
    other: Input  # the other side of a join

    def run(
        self, spark: SparkSession, checkpoint: Path, *, shift: int, until: int
    ) -> dict[int, Rows]:
        """Runs until batch `until` is committed, and returns the rows that each batch produced.

        With files and Kafka, all available data becomes batches, so more batches may run. With the
        other source, the next batch is planned and fails.
        """
        self.input.offer(range(until + 1))
        self.other.offer(range(until + 1))
        seen: dict[int, Rows] = {}

        def keep(frame: DataFrame, batch_id: int) -> None:
            if batch_id > until and self.input.kind == "rate":
                raise Enough
            seen[batch_id] = sorted(tuple(row) for row in frame.collect())

        function, mode = OPERATORS[self.operator]
        result = function(self.input.read(spark), self.other.read(spark), shift)
        writer = result.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        writer = writer.foreachBatch(keep)
        if self.input.kind != "rate":
            writer.trigger(availableNow=True).start().awaitTermination()
            return seen
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "Enough" not in str(error):
                raise
        return seen


class Enough(Exception):
    """Ends a query at a batch."""
