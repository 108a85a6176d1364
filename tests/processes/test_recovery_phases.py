"""Every recovery has its phases, whatever was lost: all are reported, and they add up."""

import os
import signal
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from pipelines.domain.events import Envelope, RecoveryPhaseReached
from pipelines.domain.status import JobStatus, RecoveryPhase
from pipelines.protocol.restart import MILESTONES, STEPS
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry

pytestmark = pytest.mark.slow

STEP_S = 60.0
CLOCKS_MS = 20.0  # another clock stamps the lines, in whole milliseconds
TOTAL = 20_000
PACED = {"pause_ms": "60", "total": str(TOTAL)}
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.exponential-delay.initial-backoff": "100 ms",
    "restart-strategy.exponential-delay.jitter-factor": "0",
}
LOST = {
    "a slot": "kill uploading slot=1 nth=4",
    "every slot": "kill cutting nth=4",
    "a subtask": "fail cutting slot=0 nth=4",
}


@pytest.mark.parametrize("faults", LOST.values(), ids=list(LOST))
def test_a_recovery_within_a_driver_has_every_phase(tmp_path: Path, faults: str) -> None:
    with hosted_run(tmp_path, PACED, settings=SETTINGS | {"testing.faults": faults}) as run:
        ended = until_caught_up(run, tmp_path)

    (recovery,) = recoveries_of(run)
    assert ended is JobStatus.FINISHED
    assert_whole(run, recovery)
    stop, backoff = (
        duration_of(recovery, phase) for phase in (RecoveryPhase.STOP, RecoveryPhase.BACKOFF)
    )
    assert stop + backoff >= 90, "the restart strategy's wait begins while the attempt ends"


def test_a_restore_that_fails_twice_is_two_partial_and_one_whole_recovery(
    tmp_path: Path,
) -> None:
    faults = "kill cutting slot=0 nth=4; kill restoring slot=1 attempt=2; fail restored attempt=3"
    with hosted_run(tmp_path, PACED, settings=SETTINGS | {"testing.faults": faults}) as run:
        ended = until_caught_up(run, tmp_path)

    *broken, last = recoveries_of(run)
    assert ended is JobStatus.FINISHED
    assert [[each.phase for each in events_of(one)] for one in broken] == [list(STEPS[:-1])] * 2
    assert_whole(run, last)


def test_the_outage_of_a_killed_driver_counts_from_its_last_event(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=SETTINGS) as run:
        run.wait_for(lambda _: len(run.completed()) >= 3, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        last_said = run.poll()[-1]
    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        ended = until_caught_up(successor, tmp_path)

    (recovery,) = recoveries_of(successor)
    missed = Between(last_said.at_ms, last_said.at_ms)
    assert ended is JobStatus.FINISHED
    assert_whole(successor, recovery)
    assert_lasted(recovery[:1], missed, moments_of(successor)[recovery[0].sequence])


def test_a_run_whose_lease_was_taken_over_recovers_in_every_phase(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=SETTINGS) as run:
        run.wait_for(lambda _: len(run.completed()) >= 3, STEP_S)
        run.directory.lease_lock.unlink()
        with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
            ended = until_caught_up(successor, tmp_path)

    (recovery,) = recoveries_of(successor)
    assert ended is JobStatus.FINISHED
    assert_whole(successor, recovery)


def until_caught_up(run: StartedRun, root: Path) -> JobStatus:
    run.wait_for(lambda _: has_caught_up(run), STEP_S)
    hurry(root)
    return run.wait_until_over(STEP_S).status


def has_caught_up(run: StartedRun) -> bool:
    recoveries = recoveries_of(run)
    return bool(recoveries) and {e.phase for e in events_of(recoveries[-1])} == set(RecoveryPhase)


def recoveries_of(run: StartedRun) -> list[list[Envelope]]:
    recoveries: list[list[Envelope]] = []
    for envelope in run.of(RecoveryPhaseReached):
        if envelope.event.phase is RecoveryPhase.DETECT:  # type: ignore[attr-defined]
            recoveries.append([])
        recoveries[-1].append(envelope)
    return recoveries


def events_of(recovery: list[Envelope]) -> list[RecoveryPhaseReached]:
    events = (envelope.event for envelope in recovery)
    return [event for event in events if isinstance(event, RecoveryPhaseReached)]


def duration_of(recovery: list[Envelope], phase: RecoveryPhase) -> float:
    return next(event.duration_ms for event in events_of(recovery) if event.phase is phase)


def assert_whole(run: StartedRun, recovery: list[Envelope]) -> None:
    """Each step once and in order, each milestone once, and durations that fit the journal."""
    events = events_of(recovery)
    steps, milestones = recovery[: len(STEPS)], recovery[len(STEPS) :]
    assert [event.phase for event in events[: len(STEPS)]] == list(STEPS)
    assert sorted(event.phase for event in events[len(STEPS) :]) == sorted(MILESTONES)
    assert min(event.duration_ms for event in events) >= 0
    moments = moments_of(run)
    detected, restored = moments[steps[0].sequence], moments[steps[-1].sequence]
    for before, after in pairwise(steps):
        assert_lasted([after], moments[before.sequence], moments[after.sequence])
    assert_lasted(steps[1:], detected, restored)
    for milestone in milestones:
        assert_lasted([milestone], restored, moments[milestone.sequence])


@dataclass(frozen=True, slots=True)
class Between:
    """A moment that is known only to lie between two lines of the journal."""

    earliest_ms: float
    latest_ms: float


def moments_of(run: StartedRun) -> dict[int, Between]:
    """Returns {sequence of a line: the time of its event}

    That time is after the previous line was written, since one thread writes them all, and before
    the line itself was. On a slower machine, it is known less exactly.
    """
    return {
        after.sequence: Between(before.at_ms, after.at_ms) for before, after in pairwise(run.poll())
    }


def assert_lasted(phases: list[Envelope], begin: Between, end: Between) -> None:
    """Asserts that the phases together lasted from the one moment to the other."""
    took_ms = sum(event.duration_ms for event in events_of(phases))
    at_least_ms = end.earliest_ms - begin.latest_ms - CLOCKS_MS
    assert at_least_ms <= took_ms <= end.latest_ms - begin.earliest_ms + CLOCKS_MS
