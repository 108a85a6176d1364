"""A stateful query in its own process, with and without the listener, for `bench watch`.

    python -m bench.dashboard.watched_query CHECKPOINT GROUPS

It prints one JSON object. For each block of batches with or without the listener, this has the
median milliseconds of a batch, and the processor time of this process, without the JVM, for a
batch. A group has four blocks: without, with, with, without. They are seconds apart in one warm
process, so that other changes affect both alike. The dashboard is a server in the same process that
takes every report, so its cost counts as the listener's.
"""

import argparse
import json
import statistics
import sys
import time

from ftdash_listener import ProgressListener
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

from tests.listener_dashboard import Dashboard

WARM_BATCHES = 60
BLOCK_BATCHES = 8
"""The batches that count in a block, without the one under way when the listener is added or
removed."""

GROUP = (False, True, True, False)
ROWS_PER_BATCH = 200_000
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("groups", type=int)
    options = parser.parse_args()
    blocks = [*GROUP] * options.groups
    spark = session(WARM_BATCHES + (BLOCK_BATCHES + 10) * len(blocks))
    with Dashboard().serving() as dashboard:
        query = started(spark, options.checkpoint)
        wait_for(query, WARM_BATCHES)
        listener, found = ProgressListener(dashboard.url, "ftd_bench"), []
        for is_heard in blocks:
            if is_heard:
                spark.streams.addListener(listener)
            first = newest(query) + 2
            wait_for(query, first - 1)
            began_s = time.process_time()
            wait_for(query, first + BLOCK_BATCHES - 1)
            cpu_ms = (time.process_time() - began_s) * 1000 / BLOCK_BATCHES
            if is_heard:
                spark.streams.removeListener(listener)
            found.append((is_heard, range(first, first + BLOCK_BATCHES), cpu_ms))
        durations = {each["batchId"]: each["batchDuration"] for each in query.recentProgress}
        query.stop()
        if not dashboard.reports:
            sys.exit("the listener has reported nothing")
    measured: dict[str, list[float]] = {}
    for is_heard, block, cpu_ms in found:
        name = "with" if is_heard else "without"
        median_ms = statistics.median(durations[batch] for batch in block)
        measured.setdefault(name, []).append(median_ms)
        measured.setdefault(f"cpu_{name}", []).append(cpu_ms)
    print(json.dumps(measured))
    spark.stop()


NAMES = ("without", "with")


def session(progresses: int) -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.numRecentProgressUpdates", progresses)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def started(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
    counted = rows.groupBy((sf.col("value") % 1_000).alias("key")).count()
    writer = counted.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", checkpoint).start()


def newest(query: StreamingQuery) -> int:
    """Returns the id of the last batch that has ended, or -1 if none has."""
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


def wait_for(query: StreamingQuery, batch: int) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while newest(query) < batch:
        if time.monotonic() > ends_s:
            sys.exit(f"batch {batch} had not ended after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
