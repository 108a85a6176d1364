"""Output that a run without a checkpoint left in its targets does not stay there.

The next run of its name, or the run's own end, discards it. Output that a point needs stays until
it is restored.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import Cancel, TriggerCheckpoint
from pipelines.domain.events import LeftoversDiscarded, LeftoversKept, MetricsSampled
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from pipelines.runtime.master.output.leftovers import NEEDED
from tests.driven_run import StartedRun
from tests.postgres_server import PostgresServer, postgres_server
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import TOTAL, assert_rows_exact
from tests.processes.tables import DATABASE, NAME, TABLES

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "50"}
SOON, ON_REQUEST = "50 ms", "10 min"
READ = 2_000
"""Enough that every subtask has written something before the first checkpoint."""

FIRST, SECOND, THIRD = RunId("run-1"), RunId("run-2"), RunId("run-3")


def test_a_new_run_ends_transactions_of_one_killed_before_any_checkpoint(
    tmp_path: Path,
) -> None:
    with postgres_server(max_prepared_transactions=50) as server:
        left = killed_at(tmp_path, server, "acknowledged")
        assert left, "each subtask has prepared"

        with tables_run(tmp_path, server, SECOND) as run:
            hurry(tmp_path)
            assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED

        assert gids(server) == []
        assert locks_without_a_session(server) == 0
        assert_tables_exact(server)
    assert [(said.sink, said.runs, said.count) for said in discarded(run)] == [
        ("prepared", (FIRST,), len(left))
    ]
    assert run.of(LeftoversKept) == []


def test_a_run_that_is_cancelled_before_its_first_checkpoint_leaves_nothing(
    tmp_path: Path,
) -> None:
    """One slot stands still, so that the checkpoint cannot complete."""
    with postgres_server(max_prepared_transactions=50) as server:
        with tables_run(tmp_path, server, FIRST, faults="stop uploaded slot=1") as run:
            ask_for_checkpoint(run)
            run.wait_for(lambda _: len(gids(server)) >= 2, STEP_S)
            status = cancel(run)
            with suppress(ProcessLookupError):  # the kernel may have ended it with its driver
                os.kill(run.pid_of(1), signal.SIGKILL)

        assert status is JobStatus.CANCELED
        assert run.completed() == []
        assert gids(server) == []
        assert locks_without_a_session(server) == 0
        with tables_run(tmp_path, server, SECOND) as newer:
            hurry(tmp_path)
            assert newer.wait_until_over(STEP_S).status is JobStatus.FINISHED
        assert_tables_exact(server)
    assert [(said.sink, said.runs) for said in discarded(run)] == [("prepared", (FIRST,))]
    assert discarded(newer) == []


def test_output_prepared_for_a_point_survives_a_fresh_run_until_its_restore(
    tmp_path: Path,
) -> None:
    with postgres_server(max_prepared_transactions=50) as server:
        needed = killed_at(tmp_path, server, "published")
        point = RunDirectory.of(tmp_path, NAME, FIRST).path / "checkpoints" / "chk-1"
        assert (point / "manifest.json").exists()

        with tables_run(tmp_path, server, SECOND) as afresh:
            afresh.wait_for_more(2, STEP_S)
            assert set(needed) <= set(gids(server))
            assert cancel(afresh) is JobStatus.CANCELED
        with tables_run(tmp_path, server, THIRD, restore_from=str(point)) as restored:
            hurry(tmp_path)
            assert restored.wait_until_over(STEP_S).status is JobStatus.FINISHED

        assert_tables_exact(server)
        assert not set(needed) & set(gids(server))
    kept = afresh.of(LeftoversKept)[0].event
    assert isinstance(kept, LeftoversKept)
    assert (kept.why, kept.runs, kept.count) == (NEEDED, (FIRST,), len(needed))


def test_the_next_run_removes_the_hidden_files_of_a_killed_run(tmp_path: Path) -> None:
    settings = settings_with("kill acknowledged")
    with hosted_run(tmp_path, PACED, settings=settings, run_id=FIRST) as killed:
        ask_for_checkpoint(killed)
        killed.process.wait(STEP_S)
    left = hidden(tmp_path)
    assert left

    with hosted_run(tmp_path, PACED, settings=settings_with(""), run_id=SECOND) as run:
        hurry(tmp_path)
        assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED

    assert hidden(tmp_path) == []
    assert_rows_exact(tmp_path / "output")
    [said] = discarded(run)
    assert (said.runs, said.count, said.what) == ((FIRST,), len(left), "hidden files")


def killed_at(root: Path, server: PostgresServer, point: str) -> list[str]:
    """Runs the first driver, which kills itself in its first checkpoint; returns what it leaves."""
    with tables_run(root, server, FIRST, faults=f"kill {point}") as run:
        ask_for_checkpoint(run)
        run.process.wait(STEP_S)
    assert run.completed() == []
    return gids(server)


def ask_for_checkpoint(run: StartedRun) -> None:
    """Asks for the first checkpoint, once the run has read much."""
    run.wait_for(lambda _: reached(run) >= READ, STEP_S)
    who = {"requested_by": "ada", "reason": "test"}
    submit(run.directory, TriggerCheckpoint(request_id=RequestId("first"), **who))


def reached(run: StartedRun) -> int:
    samples = [envelope.event for envelope in run.of(MetricsSampled)]
    return max([s.reached_records or 0 for s in samples if isinstance(s, MetricsSampled)] or [0])


def cancel(run: StartedRun) -> JobStatus:
    who = {"requested_by": "ada", "reason": "test"}
    submit(run.directory, Cancel(request_id=RequestId("enough"), **who))
    return run.wait_until_over(STEP_S).status


def settings_with(faults: str) -> dict[str, str]:
    """Returns settings in which, with faults, checkpoints come only on request."""
    interval = {"execution.checkpointing.interval": ON_REQUEST if faults else SOON}
    return interval | ({"testing.faults": faults} if faults else {})


def tables_run(  # type: ignore[no-untyped-def]
    root: Path, server: PostgresServer, run_id: RunId, faults: str = "", **how: str
):
    return hosted_run(
        root,
        PACED,
        settings=settings_with(faults),
        run_id=run_id,
        environment={DATABASE: server.url_of("public")},
        spec_fields={"pipeline": NAME, "started_by": "ada"},
        **how,
    )


def gids(server: PostgresServer) -> list[str]:
    return [str(gid) for (gid,) in server.rows("select gid from pg_prepared_xacts")]


def locks_without_a_session(server: PostgresServer) -> int:
    [(count,)] = server.rows("select count(*) from pg_locks where pid is null")
    return int(str(count))


def assert_tables_exact(server: PostgresServer) -> None:
    for table in TABLES:
        rows = server.rows(f"select number from public.{table} order by number")
        assert rows == [(number,) for number in range(TOTAL)]


def discarded(run: StartedRun) -> list[LeftoversDiscarded]:
    events = [envelope.event for envelope in run.of(LeftoversDiscarded)]
    return [event for event in events if isinstance(event, LeftoversDiscarded)]


def hidden(root: Path) -> list[Path]:
    return sorted((root / "output").rglob(".prepared-*"))
