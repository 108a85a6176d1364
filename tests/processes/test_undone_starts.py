"""A start from nothing is undone: the files and PostgreSQL rows that it set aside come back.

The points of the earlier run continue from there, exactly.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import Cancel, UndoStart
from pipelines.domain.events import (
    CheckpointCompleted,
    MetricsSampled,
    RequestEnded,
    SlotConnected,
)
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.status import JobStatus, RequestOutcome
from tests.driven_run import StartedRun
from tests.postgres_server import postgres_server
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import TOTAL, assert_rows_exact, committed
from tests.processes.tables import DATABASE, NAME, TABLES

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "50"}
SOON, NEVER = "50 ms", "1 d"
READ = 500
Start = Callable[..., AbstractContextManager[StartedRun]]


def test_undoing_a_start_puts_files_back_and_a_restore_continues(tmp_path: Path) -> None:
    def start(number: int, interval: str, **more: object) -> AbstractContextManager[StartedRun]:
        return started(tmp_path, number, interval, spec_fields={}, **more)

    output = tmp_path / "output"
    before, after, during = undone(tmp_path, start, lambda: len(committed(output)))

    assert before == after > during == 0
    assert_rows_exact(output)


def test_undoing_a_start_puts_rows_back_and_a_restore_continues(tmp_path: Path) -> None:
    with postgres_server(max_prepared_transactions=50) as server:
        secret = {DATABASE: server.url_of("public")}

        def start(number: int, interval: str, **more: object) -> AbstractContextManager[StartedRun]:
            spec_fields = {"pipeline": NAME}
            return started(
                tmp_path, number, interval, spec_fields=spec_fields, environment=secret, **more
            )

        def visible() -> list[tuple[int, ...]]:
            counted = "select count(*) from public.{0}"
            return [server.rows(counted.format(table))[0] for table in TABLES]

        before, after, during = undone(tmp_path, start, visible)

        assert before == after
        assert during == [(0,), (0,)]
        for table in TABLES:
            rows = server.rows(f"select number from public.{table} order by number")
            assert rows == [(number,) for number in range(TOTAL)]


def test_a_separate_run_puts_back_output_that_an_ended_run_set_aside(tmp_path: Path) -> None:
    """It reads nothing and starts no slot."""

    def start(number: int, interval: str, **more: object) -> AbstractContextManager[StartedRun]:
        return started(tmp_path, number, interval, **{"spec_fields": {}, **more})

    output = tmp_path / "output"
    newest = canceled_after_some(start)
    before = len(committed(output))
    with start(2, NEVER) as again:
        again.wait_for(lambda _: records_of(again) > READ, STEP_S)
        answered(again, Cancel(**who("cancel")))
        again.wait_until_over(STEP_S)
    during = len(committed(output))
    with start(3, NEVER, spec_fields={"puts_back": True, "started_by": "ada"}) as back:
        ended = back.wait_until_over(STEP_S)
        assert back.of(SlotConnected) == []
    after = len(committed(output))

    assert (ended.status, before) == (JobStatus.CANCELED, after)
    assert "ada undid the start: the output of run run-1 up to checkpoint" in ended.reason
    assert after > during == 0
    restored = {"restore_from": newest.path, "first": newest.checkpoint_id + 1}
    with start(4, SOON, **restored) as last:
        hurry(tmp_path)
        assert last.wait_until_over(STEP_S).status is JobStatus.FINISHED
    assert_rows_exact(output)


def canceled_after_some(start: Start) -> CheckpointCompleted:
    """Returns the newest checkpoint of the first run."""
    with start(1, SOON) as first:
        first.wait_for_more(3, STEP_S)
        answered(first, Cancel(**who("cancel")))
        first.wait_until_over(STEP_S)
        return first.completed()[-1]


def undone(root: Path, start: Start, visible: Callable[[], object]) -> tuple[object, ...]:
    """Returns the output visible before the fresh start, after its undo, and in between."""
    newest = canceled_after_some(start)
    before = visible()
    with start(2, NEVER) as again:
        again.wait_for(lambda _: records_of(again) > READ, STEP_S)
        during = visible()
        answered(again, UndoStart(**who("undo")))
        assert again.wait_until_over(STEP_S).status is JobStatus.CANCELED
    after = visible()
    restored = {"restore_from": newest.path, "first": newest.checkpoint_id + 1}
    with start(3, SOON, **restored) as third:
        hurry(root)
        assert third.wait_until_over(STEP_S).status is JobStatus.FINISHED
    return before, after, during


def started(
    root: Path,
    number: int,
    interval: str,
    *,
    spec_fields: dict[str, object],
    environment: dict[str, str] | None = None,
    restore_from: str | None = None,
    first: int = 1,
) -> AbstractContextManager[StartedRun]:
    follows = {"follows": RunId(f"run-{number - 1}")} if number > 1 else {}
    return hosted_run(
        root,
        PACED,
        settings={"execution.checkpointing.interval": interval},
        run_id=RunId(f"run-{number}"),
        spec_fields={**spec_fields, **follows, "first_checkpoint_id": first},
        environment=environment,
        restore_from=restore_from,
    )


def who(request_id: str) -> dict[str, object]:
    return {"request_id": RequestId(request_id), "requested_by": "ada", "reason": "test"}


def answered(run: StartedRun, command: Cancel | UndoStart) -> None:
    submit(run.directory, command)
    run.wait_for(lambda _: len(run.of(RequestEnded)) > 0, STEP_S)
    [ended] = [envelope.event for envelope in run.of(RequestEnded)]
    assert isinstance(ended, RequestEnded)
    assert ended.outcome is RequestOutcome.SUCCEEDED, ended.message


def records_of(run: StartedRun) -> int:
    sampled = [e.event for e in run.of(MetricsSampled)]
    return max([e.reached_records or 0 for e in sampled if isinstance(e, MetricsSampled)] or [0])
