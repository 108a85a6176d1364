"""`python -m pipelines.spark.questions state|partitions`: one question to Spark and its answer.

The process exists only for Spark; question and answer are JSON. The question is one line of
standard input. When standard input ends, the process ends, and Spark with it: it must not continue
to write without the process that asked. Exit status 1: the last line of standard error says why
there is no answer.

`state` reads rows of a query's state through Spark's source `statestore`, and writes nothing.
`partitions` redistributes the state of a fork over another number of partitions. It writes only
into the fork. The asker has made the fork, and removes it if there is no answer.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from pipelines.domain.errors import Rejected
from pipelines.spark.structured import StateAddress, repartition, state_difference, state_rows
from pipelines.storage.trees import tree_at

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
    """Returns the exit status. `answer` raises Rejected if there is no answer."""
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    threading.Thread(target=_end_with_the_asker, name="asker", daemon=True).start()
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        result = answer(spark, question)
    except Rejected as refusal:
        first = str(refusal).strip().partition("\n")[0]
        sys.stderr.write(f"\n{first}\n")
        return 1
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(result))
    return 0


def _end_with_the_asker() -> None:
    """Ends this process when the asker has ended. Spark's Java process then ends, too, because its
    own standard input ends. Reads with `os.read`: Python's reader of standard input has a lock that
    would block the end of this process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(ORPHANED)


class Place(msgspec.Struct):
    location: str
    batch_id: int


class StateQuestion(msgspec.Struct):
    """With one place, asks for its rows; with two, for the rows that only one of them has."""

    places: list[Place]
    operator_id: int
    store: str
    key: str
    rows_max: int


def state_answer(spark: SparkSession, question: StateQuestion) -> dict[str, object]:
    """Raises Rejected if Spark refuses."""
    addresses = [
        StateAddress(
            location=place.location,
            batch_id=place.batch_id,
            operator_id=question.operator_id,
            store=question.store,
        )
        for place in question.places
    ]
    try:
        if len(addresses) == 1:
            rows, count = _rows(state_rows(spark, addresses[0]), question)
            return {"rows": rows, "count": count}
        lost, gained = state_difference(spark, *addresses)
        rows, count = _rows(lost, question)
        more, more_count = _rows(gained, question)
    except PySparkException as error:
        raise Rejected(f"Spark cannot read the state: {error}") from error
    return {"rows": rows, "count": count, "gained": more, "gained_count": more_count}


def _rows(frame: DataFrame, question: StateQuestion) -> tuple[list[dict[str, object]], int]:
    """Returns the first rows in the order of their keys, and the number of all rows."""
    partition: list[Column] = [sf.col("partition_id")] if "partition_id" in frame.columns else []
    written = frame.select(
        sf.to_json("key").alias("key"), sf.to_json("value").alias("value"), *partition
    )
    if question.key:
        written = written.where(sf.col("key").contains(question.key))
    written = written.cache()
    found = written.orderBy("key").limit(question.rows_max).collect()
    rows = [
        {**row.asDict(), "key": json.loads(row["key"] or "null"), "value": _value(row["value"])}
        for row in found
    ]
    return rows, written.count()


def _value(text: str | None) -> object:
    return None if text is None else json.loads(text)


class PartitionsQuestion(msgspec.Struct):
    """`location`: a fork of batch `batch_id` from which no query has run."""

    location: str
    batch_id: int
    partitions: int


def partitions_answer(spark: SparkSession, question: PartitionsQuestion) -> dict[str, int]:
    """Repartitions a fork. Raises Rejected if Spark refuses, or if a row differs afterwards."""
    tree = tree_at(question.location, [question.location])
    return {"compared_rows": repartition(spark, tree, question.batch_id, question.partitions)}


ANSWERS: dict[str, Callable[[], int]] = {
    "state": lambda: answer_one("ftdash state", StateQuestion, state_answer),
    "partitions": lambda: answer_one("ftdash repartition", PartitionsQuestion, partitions_answer),
}

if __name__ == "__main__":
    sys.exit(ANSWERS[sys.argv[1]]())
