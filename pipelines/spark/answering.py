"""One question to Spark and its answer, in a process of its own, both in JSON.

The question is one line of standard input. The process ends when standard input does, and Spark
with it: without the process that asked, it must not write on. Exit status 1: the last line of
standard error says why there is no answer.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec
from pyspark.sql import SparkSession

from pipelines.domain.errors import Rejected

ORPHANED = 2
"""The exit status if the asking process is gone."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
Q = TypeVar("Q", bound=msgspec.Struct)


def answer_one(name: str, kind: type[Q], answer: Callable[[SparkSession, Q], object]) -> int:
    """The exit status. `answer` raises Rejected if there is none."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    threading.Thread(target=_end_with_the_asker, name="asker", daemon=True).start()
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        told = answer(spark, asked)
    except Rejected as refusal:
        first = str(refusal).strip().partition("\n")[0]
        sys.stderr.write(f"\n{first}\n")
        return 1
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(told))
    return 0


def _end_with_the_asker() -> None:
    """Spark's Java ends when this process does, because its own standard input ends then. Python's
    reader of standard input has a lock that would be in the way at the end of this process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(ORPHANED)
