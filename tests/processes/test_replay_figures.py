"""A recovery reports as replayed what was read after its point, however often the run died.

Slots and drivers are real.
"""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.events import MetricsSampled, RecoveryPhaseReached
from pipelines.domain.status import JobStatus, RecoveryPhase
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import HELD_AT, TOTAL, assert_exact
from tests.processes.scripted import BEFORE, BEHIND
from tests.processes.scripted_run import CHECKPOINTING, scripted

pytestmark = pytest.mark.slow

STEP_S = 60.0
SETTINGS = {
    CHECKPOINTING + "interval": "10 min",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}


def test_restarts_do_not_add_up_in_the_count_of_reread_records(tmp_path: Path) -> None:
    """Without a checkpoint, each attempt reads the same records; so does the next driver."""
    parameters = {"held_at": str(HELD_AT), "total": str(TOTAL)}
    with hosted_run(tmp_path, parameters, settings=SETTINGS) as run:
        for attempt in (1, 2, 3):
            until_reached(run, attempt)
            os.kill(run.pid_of(1), signal.SIGKILL)
        until_reached(run, 4)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    with hosted_run(tmp_path, run_id=run.directory.run_id) as run:
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert replayed(run) == [HELD_AT] * 4
    assert_exact(tmp_path / "output")


def test_acked_mode_counts_a_record_that_is_emitted_again_once(tmp_path: Path) -> None:
    with scripted(tmp_path, {CHECKPOINTING + "mode": "ACKED"}) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        script.until_over()
        newest = script.run.completed()[-1]

    known = {number for numbers in (*BEFORE.values(), BEHIND) for number in numbers}
    assert newest.source_records >= len(known)
    assert newest.source_records == newest.counters["numbers.records_read"]
    assert newest.source_records == newest.counters["numbers.spout_acked"]


def until_reached(run: StartedRun, attempt: int) -> None:
    def is_there(_: object) -> bool:
        told = [e for e in run.of(MetricsSampled) if e.attempt == attempt]
        return any(e.event.subtasks and e.event.reached_records == HELD_AT for e in told)  # type: ignore[union-attr]

    run.wait_for(is_there, STEP_S)


def replayed(run: StartedRun) -> list[int | None]:
    events = [envelope.event for envelope in run.of(RecoveryPhaseReached)]
    return [
        event.records_to_replay
        for event in events
        if isinstance(event, RecoveryPhaseReached) and event.phase is RecoveryPhase.DECIDE
    ]
