"""A query of Nexmark as a Structured Streaming query, a file of each kind per micro-batch.

Usage: structured_nexmark.py JSON, with a Python that has pyspark. The object has `query`,
`directory` of the Parquet files, `backend` and `scratch`. A query that Structured Streaming cannot
express gives null seconds: Structured Streaming has no distinct counts, no aggregate behind another
one, no ranking and no windows by the clock. The clock runs from the start of the query, in a
running session, to its end.
"""

import json
import os
import sys
import time
from pathlib import Path

from nexmark_sql import KINDS, QUERIES
from pyspark.sql import SparkSession

PARALLELISM = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
}
_PEOPLE = "session_window(date_time, '10 seconds')"
_WINDOW = "window(date_time, '10 seconds')"
CHANNEL = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
OWN = {  # queries that differ in Spark's SQL
    "q8": f"""SELECT P.id, P.name, P.w.start AS stime
        FROM (SELECT id, name, {_WINDOW} AS w, date_time FROM person) P
        JOIN (SELECT seller, {_WINDOW} AS w, date_time FROM auction) A
        ON P.id = A.seller AND P.w = A.w""",
    "q11": f"""SELECT bidder, count(*) AS bid_count, {_PEOPLE}.start, {_PEOPLE}.end FROM bid
        GROUP BY bidder, {_PEOPLE}""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
        ELSE {CHANNEL} END AS channel_id FROM bid
        WHERE {CHANNEL} <> '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1,
        split(url, '/')[4] AS dir2, split(url, '/')[5] AS dir3 FROM bid""",
}
APPEND = ("q0", "q1", "q2", "q3", "q8", "q10", "q11", "q14", "q20", "q21", "q22", "q23")
UPDATE = ("q17",)


def main(options: dict[str, str]) -> None:
    query = options["query"]
    if query not in (*APPEND, *UPDATE):
        print(json.dumps({"seconds": None}))
        return
    spark = session(options["backend"])
    directory = Path(options["directory"])  # has the kinds of events that the query reads
    for kind, columns in KINDS.items():
        if not (directory / kind).is_dir():
            continue
        typed = columns.partition(", p_time")[0].replace("TIMESTAMP(3)", "TIMESTAMP")
        events = spark.readStream.schema(typed).option("maxFilesPerTrigger", 1)
        stream = events.parquet(str(directory / kind))
        stream.withWatermark("date_time", "4 seconds").createOrReplaceTempView(kind)
    result = spark.sql(OWN.get(query, QUERIES[query]))
    writer = result.writeStream.outputMode("update" if query in UPDATE else "append")
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    began_s, began_cpu_s = time.monotonic(), processor_s(java)
    running = (
        writer.format("noop")
        .option("checkpointLocation", str(Path(options["scratch"]) / "checkpoints"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    figures = {
        "seconds": time.monotonic() - began_s,
        "cpu_s": processor_s(java) - began_cpu_s,
        "peak_bytes": peak_bytes(java),
        "checkpoints": running.lastProgress["batchId"] + 1,
        "checkpoint_ms_p99": None,
        "state_bytes": sum(
            each["memoryUsedBytes"] for each in running.lastProgress["stateOperators"]
        ),
    }
    print(json.dumps(figures))


def session(backend: str) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]")
    if backend == "rocksdb":
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) << 10 for each in lines if each.startswith("VmHWM"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
