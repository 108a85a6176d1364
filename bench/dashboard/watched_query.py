"""A stateful query in a process of its own, with or without the listener, for `bench watch`.

    python -m bench.dashboard.watched_query CHECKPOINT [--listener]

Prints the milliseconds of each batch as one JSON list. The dashboard is a server in the same
process that takes every report, so that its cost weighs on the listener and not on nothing.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack

from ftdash_listener import watch
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.listener_dashboard import Dashboard

BATCHES = 60
ROWS_PER_BATCH = 200_000
PATIENCE_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--listener", action="store_true")
    options = parser.parse_args()
    spark = session()
    with ExitStack() as stack:
        if options.listener:
            dashboard = stack.enter_context(Dashboard().serving())
            watch(spark, dashboard.url, "ftd_bench")
        print(json.dumps(durations(spark, options.checkpoint)))
    spark.stop()


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.numRecentProgressUpdates", 2 * BATCHES)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def durations(spark: SparkSession, checkpoint: str) -> list[float]:
    """Milliseconds of the first `BATCHES` batches."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
    counted = rows.groupBy((sf.col("value") % 1_000).alias("key")).count()
    query = (
        counted.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    ends_s = time.monotonic() + PATIENCE_S
    while len(query.recentProgress) < BATCHES:
        if time.monotonic() > ends_s:
            sys.exit(f"{BATCHES} batches took longer than {PATIENCE_S:.0f} s")
        time.sleep(0.1)
    taken = [float(each["batchDuration"]) for each in query.recentProgress[:BATCHES]]
    query.stop()
    return taken


if __name__ == "__main__":
    main()
