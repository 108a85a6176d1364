"""`python -m pipelines.spark.repartitioning`: other partitions for the state of a fork.

Asked and answered as `answering` says. It writes into the fork alone, which the asker has made and
removes if there is no answer.
"""

import sys

import msgspec
from pyspark.sql import SparkSession

from pipelines.spark.answering import answer_one
from pipelines.spark.structured import repartition
from pipelines.storage.trees import tree_at


class Question(msgspec.Struct):
    """`location`: of a fork of that batch, from which no query has run."""

    location: str
    batch_id: int
    partitions: int


def answer(spark: SparkSession, asked: Question) -> dict[str, int]:
    """Raises Rejected if Spark refuses, or if a row differs."""
    tree = tree_at(asked.location, [asked.location])
    return {"compared_rows": repartition(spark, tree, asked.batch_id, asked.partitions)}


if __name__ == "__main__":
    sys.exit(answer_one("ftdash repartition", Question, answer))
