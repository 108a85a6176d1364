"""`python -m pipelines.spark.state_reading`: rows of a query's state.

Asked and answered as `answering` says. It reads through Spark's source `statestore`, and writes
nothing.
"""

import json
import sys

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from pipelines.domain.errors import Rejected
from pipelines.spark.answering import answer_one
from pipelines.spark.structured import StateAddress, state_difference, state_rows


class Place(msgspec.Struct):
    location: str
    batch_id: int


class Question(msgspec.Struct):
    """One place: its rows. Two: the rows that only one of them has."""

    places: list[Place]
    operator_id: int
    store: str
    key: str
    rows_max: int


def answer(spark: SparkSession, asked: Question) -> dict[str, object]:
    """Raises Rejected if Spark refuses."""
    addresses = [
        StateAddress(
            location=place.location,
            batch_id=place.batch_id,
            operator_id=asked.operator_id,
            store=asked.store,
        )
        for place in asked.places
    ]
    try:
        if len(addresses) == 1:
            rows, count = _rows(state_rows(spark, addresses[0]), asked)
            return {"rows": rows, "count": count}
        lost, gained = state_difference(spark, *addresses)
        rows, count = _rows(lost, asked)
        more, more_count = _rows(gained, asked)
    except PySparkException as error:
        raise Rejected(f"Spark cannot read the state: {error}") from error
    return {"rows": rows, "count": count, "gained": more, "gained_count": more_count}


def _rows(frame: DataFrame, asked: Question) -> tuple[list[dict[str, object]], int]:
    """The first rows in the order of their keys, and how many there are."""
    partition: list[Column] = [sf.col("partition_id")] if "partition_id" in frame.columns else []
    written = frame.select(
        sf.to_json("key").alias("key"), sf.to_json("value").alias("value"), *partition
    )
    if asked.key:
        written = written.where(sf.col("key").contains(asked.key))
    written = written.cache()
    found = written.orderBy("key").limit(asked.rows_max).collect()
    rows = [
        {**row.asDict(), "key": json.loads(row["key"] or "null"), "value": _value(row["value"])}
        for row in found
    ]
    return rows, written.count()


def _value(text: str | None) -> object:
    return None if text is None else json.loads(text)


if __name__ == "__main__":
    sys.exit(answer_one("ftdash state", Question, answer))
