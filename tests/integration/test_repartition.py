"""New partitions for the state of a real query, by the process of the work, and undone."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingCheckpointManager

from ftdash.supervision import java
from pipelines.domain.errors import Rejected
from pipelines.spark.questions import ORPHANED
from pipelines.spark.structured import StateAddress, fork_repartitioned, state_rows
from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.doctor import examine
from pipelines.structured.fork import ForkRequest
from pipelines.structured.recovery import recovery_points
from tests.new_home import ROOT, new_home
from tests.polling import wait_until
from tests.reserved_ports import reserved_port
from tests.structured_rewinds.queries import ROCKSDB, Input, Query, StoreSetting, configure

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ENDS_WITHIN_S = 300.0
ASKING = """
import sys
import django
django.setup()
from ftdash.watching.work_requests import Rewind
from ftdash.watching.services import forks, registration, work
from ftdash.watching.services.registration import Sighting

who = {"requester": "ada", "reason": "more cores"}
registration.watch(name="orders", seen=Sighting(directory=sys.argv[1]), **who)
asked = Rewind(batch_id=3, target=sys.argv[2], partitions=3)
work.start(forks.ask_for_fork("orders", asked, **who))
"""
"""Asks for the work as a page does, and starts it as a worker does."""


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    configure(spark)
    return spark


def test_a_repartitioned_fork_keeps_the_rows_and_continues_like_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Uses format 2; `test_structured_queries` uses format 1."""
    StoreSetting(ROCKSDB, 2).apply(spark)
    query = query_in(tmp_path, "aggregation")
    checkpoint, wide = tmp_path / "checkpoint", tmp_path / "wide"
    query.run(spark, checkpoint, shift=0, until=3)
    before = contents(checkpoint)

    state, problem, result = carried_out(tmp_path, checkpoint, wide)

    assert (state, problem) == ("SUCCEEDED", "")
    assert contents(checkpoint) == before
    dealt = read_tree(LocalTree(wide))
    assert (result["partitions"], result["next_batch"]) == (3, 5)
    assert (dealt.batches[-1].shuffle_partitions, dealt.newest_committed) == (3, 4)
    assert examine(dealt) == ()
    assert recovery_points(dealt)[-1].is_complete
    rows = rows_in(spark, checkpoint, batch=3)
    assert rows_in(spark, wide, batch=4) == rows
    assert result["compared_rows"] == len(rows) > 0
    further = query.run(spark, wide, shift=0, until=5)
    same = query.run(spark, checkpoint, shift=0, until=5)
    assert [further[batch + 1] for batch in same] == list(same.values())
    assert len(same) == 2


def test_a_repartition_that_changes_a_row_is_undone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the repartition, Spark runs a batch of the query."""
    StoreSetting(ROCKSDB, 1).apply(spark)
    query = query_in(tmp_path, "aggregation")
    checkpoint, wide = tmp_path / "checkpoint", tmp_path / "wide"
    query.run(spark, checkpoint, shift=0, until=3)
    before = contents(checkpoint)

    def run_on(manager: StreamingCheckpointManager, location: str, partitions: int) -> None:
        query.run(spark, Path(location), shift=0, until=4)

    monkeypatch.setattr(StreamingCheckpointManager, "repartition", run_on)
    tree, request = LocalTree(checkpoint), ForkRequest(batch_id=3)

    with pytest.raises(Rejected, match="changed the state of operator 0, store default"):
        fork_repartitioned(spark, tree, read_tree(tree), LocalTree(wide), request, partitions=3)

    assert not wide.exists()
    assert contents(checkpoint) == before


def test_the_process_ends_when_its_caller_is_gone(tmp_path: Path) -> None:
    question = {"location": str(tmp_path / "fork"), "batch_id": 3, "partitions": 3}

    ended = subprocess.run(
        [sys.executable, "-m", "pipelines.spark.questions", "partitions"],
        input=json.dumps(question).encode() + b"\n",
        cwd=ROOT,
        env={**os.environ, **java.environment()},
        timeout=ENDS_WITHIN_S,
    )

    assert ended.returncode == ORPHANED
    assert not (tmp_path / "fork").exists()


def query_in(home: Path, operator: str) -> Query:
    (home / "input").mkdir()
    left, right = (Input("file", home / "input" / side) for side in ("left", "right"))
    return Query(operator, left, right)


def carried_out(home: Path, checkpoint: Path, target: Path) -> tuple[str, str, dict[str, Any]]:
    """Carries out the work in its own installation; returns its state, problem and result."""
    installation = new_home(home / "installation")
    with reserved_port() as nowhere:
        environment = {
            **os.environ,
            "FTDASH_HOME": str(installation),
            "FTDASH_REDIS_URL": f"redis://127.0.0.1:{nowhere}/0",
            "FTDASH_WATCH_ROOTS": str(home),
            "DJANGO_SETTINGS_MODULE": "ftdash.settings",
        }
        words = [sys.executable, "-c", ASKING, str(checkpoint), str(target)]
        subprocess.run(words, cwd=ROOT, env=environment, check=True)
        wait_until(lambda: work_of(installation)[3], within_s=ENDS_WITHIN_S)
    state, problem, result, _ = work_of(installation)
    return state, problem, json.loads(result)


def work_of(installation: Path) -> tuple[str, str, str, bool]:
    columns = "state, problem, result, ended_at is not null"
    with sqlite3.connect(installation / "ftdash.sqlite3") as database:
        query = f"select {columns} from watching_querywork"
        found: tuple[str, str, str, bool] = database.execute(query).fetchone()
    return found


def rows_in(spark: SparkSession, checkpoint: Path, batch: int) -> list[tuple[Any, Any]]:
    frame = state_rows(spark, StateAddress(location=str(checkpoint), batch_id=batch))
    return sorted((tuple(row["key"]), tuple(row["value"])) for row in frame.collect())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
