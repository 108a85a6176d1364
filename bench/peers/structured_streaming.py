"""The count of `pv` as a Structured Streaming query, a file per micro-batch.

Usage: structured_streaming.py DIRECTORY app_id|user_id hashmap|rocksdb SCRATCH, with a Python that
has pyspark. Each micro-batch of 2.5 million records, one or two seconds of work, writes a
checkpoint. The clock runs from the start of the query, in a running session, to its end.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

PARALLELISM = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
}


def main(directory: str, key: str, backend: str, scratch: str) -> None:
    spark = session(backend)
    events = (
        spark.readStream.schema("app_id long, user_id long, ts long")
        .option("maxFilesPerTrigger", 1)
        .csv(directory)
    )
    counted = events.groupBy(key).count().writeStream.outputMode("update").format("noop")
    began_s = time.monotonic()
    query = (
        counted.option("checkpointLocation", str(Path(scratch) / "checkpoints"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.monotonic() - began_s
    print(json.dumps({"seconds": seconds, "checkpoints": query.lastProgress["batchId"] + 1}))


def session(backend: str) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]")
    if backend == "rocksdb":
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main(*sys.argv[1:])
