"""`explain` writes about real queries the same things that Spark writes into their checkpoints."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from ftdash_listener import CannotExplain, explain
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import ForkRequest
from pipelines.structured.formats import SourceKind
from pipelines.structured.preflight import Check, Outcome, Output, Question, plan_of, preflight
from tests.structured_rewinds.queries import join

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Iterator[DataFrame]:
    """Rows of one file, so that a query makes one batch."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input/0.json").write_text('{"value": 1, "other": 2}\n{"value": 3, "other": 4}')
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark.readStream.schema("value long, other long").json(str(tmp_path / "input"))
    spark.conf.set("spark.sql.shuffle.partitions", before)


def counted(rows: DataFrame, by: str = "value") -> DataFrame:
    return rows.groupBy(by).agg(sf.count("*").alias("n"), sf.sum("other").alias("s"))


def test_the_explained_plan_is_what_spark_writes_and_the_verdict_compares_it(
    rows: DataFrame, tmp_path: Path
) -> None:
    for number, made in enumerate((counted(rows), joined(rows))):
        home = tmp_path / str(number)
        told = explain(
            made, str(tmp_path / f"{number}.json"), "complete" if number == 0 else "append"
        )

        run(made, home, "complete" if number == 0 else "append")
        kept = read_tree(LocalTree(home))
        assert [(o["id"], o["name"]) for o in told["operators"]] == [
            (o.operator_id, o.name) for o in kept.operators
        ]
        for store, schema in told["operators"][0]["schemas"].items():
            folder = "state/0/0" if store == "default" else f"state/0/0/{store}"
            written = (home / folder / "_metadata/schema").read_bytes()
            assert base64.b64decode(schema) == written
        assert told["shuffle_partitions"] == 2
        assert refused(home, tmp_path / f"{number}.json") == []

    for other, message in (
        (
            counted(rows.withColumn("value", sf.col("value").cast("string"))),
            "The key of operator 0",
        ),
        (rows.dropDuplicates(["value"]), "and dedupe in the new code"),
        (rows.select("value"), "and the new code 0"),
    ):
        explain(other, str(tmp_path / "other.json"), "update")
        (text,) = refused(tmp_path / "0", tmp_path / "other.json")
        assert message in text


def test_a_query_that_cannot_be_explained_is_refused_in_one_sentence(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(CannotExplain, match="no stream"):
        explain(spark.range(3), str(tmp_path / "plan.json"))
    with pytest.raises(CannotExplain, match="no output mode"):
        explain(counted(rows), str(tmp_path / "plan.json"), "sideways")
    assert not (tmp_path / "plan.json").exists()


def joined(rows: DataFrame) -> DataFrame:
    timed = rows.withColumn("t", sf.timestamp_seconds("value"))
    return join(timed, timed, 0)


def run(made: DataFrame, home: Path, mode: str) -> None:
    writer = made.writeStream.outputMode(mode).format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(home)).start().awaitTermination()


def refused(checkpoint: Path, plan: Path) -> list[str]:
    """Returns the verdict's objections to the new code."""
    tree = LocalTree(checkpoint)
    found = plan_of(plan.read_bytes())
    assert found.sources is not None
    assert set(found.sources) == {SourceKind.FILE}
    question = Question(request=ForkRequest(batch_id=0), output=Output.NEW, plan=found)
    verdict = preflight(tree, read_tree(tree), LocalTree(plan.parent / "fork"), question)
    return [
        each.text
        for each in verdict.findings
        if each.check is Check.CODE and each.outcome is Outcome.REFUSED
    ]
