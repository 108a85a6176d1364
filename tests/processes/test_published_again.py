"""Kafka takes nothing back, so records that a start publishes a second time are counted.

The count appears before the start, and again when the run starts.
"""

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipelines.domain.commands import TakeSavepoint
from pipelines.domain.events import OutputPublishedAgain
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import find_flow
from pipelines.points.preflight import RestoreQuestion, preflight, repeated
from pipelines.points.verdict import Check
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.brokers.kafka_broker import KafkaBroker
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.savepoint_requests import WHO, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 120.0
RARELY = {"execution.checkpointing.interval": "2 min"}
TOTAL, SAVED_AT = 1_600, 900


def test_republished_records_are_counted_after_a_savepoint_or_a_fresh_start(
    tmp_path: Path, kafka_server: KafkaBroker
) -> None:
    kafka_server.create_topic("again", 2)
    parameters = {
        "total": str(TOTAL),
        "held_at": str(SAVED_AT),
        "hurry": str(tmp_path / "hurry"),
        "address": kafka_server.bootstrap_servers,
        "output": "again",
    }

    def run(
        number: int, restore_from: str | None = None, **changes: dict[str, str]
    ) -> AbstractContextManager[StartedRun]:
        follows = RunId(f"run-{number - 1}") if number > 1 else None
        fields = {"pipeline": "published", "follows": follows}
        return hosted_run(
            tmp_path,
            changes.get("parameters", parameters),
            settings=changes.get("settings"),
            run_id=RunId(f"run-{number}"),
            restore_from=restore_from,
            spec_fields=fields,
        )

    with run(1) as first:
        first.wait_until_cut_at(SAVED_AT, STEP_S)
        savepoint = savepoint_by(first, TakeSavepoint(**WHO))
        hurry(tmp_path)
        finish(first)
    newest = str(first.directory.path)
    question = RestoreQuestion(
        path=str(savepoint),
        flow="published",
        parameters=parameters,
        parallelism=2,
        max_parallelism=128,
        newest_run=newest,
    )
    verdict = preflight(question, FileSystemCheckpointStore([str(tmp_path)]))
    with run(2, str(savepoint)) as restored:
        finish(restored)
    at_start = list(
        repeated(find_flow("published").build(parameters), str(restored.directory.path), None)
    )
    held = {**parameters, "hurry": str(tmp_path / "later")}
    with run(3, parameters=held, settings=RARELY) as afresh:
        afresh.wait_for(lambda _: bool(afresh.of(OutputPublishedAgain)), STEP_S)
        os.kill(afresh.process.pid, signal.SIGKILL)
    (tmp_path / "later").touch()
    with run(3) as afresh:  # another driver need not repeat what the first one has reported
        finish(afresh)

    assert first.of(OutputPublishedAgain) == []
    assert [f.text for f in verdict.findings if f.check is Check.OUTPUT] == [
        "700 records that readers of topic again have already seen will be published again by"
        " 'topic': topic again takes nothing back."
    ]
    assert at_start[0].startswith("1,600 records that readers of topic again have already seen")
    assert said(restored) == [(Uid("topic"), TOTAL - SAVED_AT, False, "run-1", "run-1")]
    assert said(afresh) == [(Uid("topic"), TOTAL, False, "run-2", None)]


def finish(run: StartedRun) -> None:
    assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED, run.tail()


def said(run: StartedRun) -> list[tuple[object, ...]]:
    events = [envelope.event for envelope in run.of(OutputPublishedAgain)]
    return [
        (e.sink, e.records, e.is_at_most, e.published_by, e.restored_run)
        for e in events
        if isinstance(e, OutputPublishedAgain)
    ]
