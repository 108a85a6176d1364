"""The rows of a real query's state, and the difference between two batches.

The answers are made in this process, where Spark has already started; a refusal comes through the
process of the question. `test_repartition` has an answer from such a process.
"""

import json
from pathlib import Path

import msgspec
import pytest
from django.conf import settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ftdash.watching.services.state import answer_of_spark
from ftdash.watching.work_requests import StateRows
from pipelines.domain.errors import Rejected
from pipelines.spark.questions import Place, StateQuestion, state_answer

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_state_is_read_by_key_and_compared_between_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    for batch in range(2):
        rows = "\n".join(json.dumps({"user": f"u{n}"}) for n in range(batch + 2))
        (tmp_path / f"input/{batch}.json").write_text(rows)
        counted(spark, tmp_path)
    before = fingerprint(tmp_path / "checkpoint")

    all_rows = answer(spark, question(tmp_path, [1], key=""))
    one = answer(spark, question(tmp_path, [1], key='"u2"'))
    changed = answer(spark, question(tmp_path, [0, 1], key=""))
    with pytest.raises(Rejected, match=r"^It failed: Spark cannot read the state") as refused:
        answer_of_spark(
            settings.STATE_COMMAND,
            question(tmp_path, [7], key=""),
            StateRows,
            limit_s=300,
            failed="It failed",
            late="It was late",
        )

    counts = {row.key["user"]: row.value["count"] for row in all_rows.rows}
    assert (counts, all_rows.count) == ({"u0": 2, "u1": 2, "u2": 1}, 3)
    assert [row.key["user"] for row in one.rows] == ["u2"]
    assert (changed.count, changed.gained_count) == (2, 3)
    assert "\n" not in str(refused.value)
    assert fingerprint(tmp_path / "checkpoint") == before


def counted(spark: SparkSession, home: Path) -> None:
    rows = spark.readStream.schema("user string").json(str(home / "input"))
    writer = rows.groupBy("user").agg(sf.count("*").alias("count")).writeStream
    writer = writer.outputMode("complete").format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(home / "checkpoint")).start().awaitTermination()


def question(home: Path, batches: list[int], key: str) -> StateQuestion:
    return StateQuestion(
        places=[Place(str(home / "checkpoint"), batch) for batch in batches],
        operator_id=0,
        store="default",
        key=key,
        rows_max=200,
    )


def answer(spark: SparkSession, asked: StateQuestion) -> StateRows:
    """Returns the answer as the asking process reads it."""
    return msgspec.json.decode(json.dumps(state_answer(spark, asked)), type=StateRows)


def fingerprint(directory: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}
