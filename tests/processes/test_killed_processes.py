"""Processes of a run are killed; the output stays that of an undisturbed run."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import KillDriver, KillSlot, SlowSlot
from pipelines.domain.events import (
    FailureOccurred,
    RequestAccepted,
    RequestEnded,
    RestorePointRefused,
    SlotConnected,
    SlotLost,
    SubtaskAcknowledged,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.status import DriverKillMoment, JobStatus, KillMoment, RequestOutcome
from tests.processes.damaged_points import alter, manifests
from tests.processes.host import DriverProcess, hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
LONGER = {"pause_ms": "150"}  # 5 s; no test waits for the end
SOONER = {"execution.checkpointing.interval": "50 ms"}


def test_an_undisturbed_run_gives_the_expected_output(tmp_path: Path) -> None:
    with hosted_run(tmp_path, settings=SOONER) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_a_killed_slot_changes_nothing(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert [e.event.slot for e in run.of(FailureOccurred)] == [1]  # type: ignore[attr-defined]
    assert_exact(tmp_path / "output")


def test_a_point_damaged_during_the_run_is_found_before_a_recovery_needs_it(
    tmp_path: Path,
) -> None:
    settings = {
        **SOONER,
        "execution.checkpointing.num-retained": "100",
        "execution.checkpointing.verification-interval": "50 ms",
    }
    with hosted_run(tmp_path, LONGER, settings=settings) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        point = Path(run.completed()[-1].path)
        manifest = point / "manifest.json"
        alter(manifest)
        run.wait_for(lambda _: bool(run.of(RestorePointRefused)), STEP_S)

    (refused,) = run.of(RestorePointRefused)
    assert refused.event.path == str(point)  # type: ignore[attr-defined]
    assert f"Looked at again: {manifest} was altered" in refused.event.message  # type: ignore[attr-defined]
    assert run.of(FailureOccurred) == []


def test_without_fallback_a_damaged_newest_point_ends_the_run_with_the_reason(
    tmp_path: Path,
) -> None:
    settings = {
        "execution.checkpointing.interval": "50 ms",
        "execution.state-recovery.on-damaged-point": "fail",
        "testing.faults": "kill published nth=4",
    }
    with hosted_run(tmp_path, LONGER, settings=settings) as run:
        run.process.wait(STEP_S)
    newest = manifests(run.directory)[-1]
    alter(newest)

    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        hurry(tmp_path)
        ended = successor.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert f"The newest recovery point of this run cannot be used: {newest} was" in ended.reason
    assert "on-damaged-point = fail" in ended.reason


def test_a_driver_that_lost_its_lease_stops_at_once_and_says_so(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        run.directory.lease_lock.unlink()
        with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
            exit_code = run.process.wait(STEP_S)
            hurry(tmp_path)
            ended = successor.wait_until_over(STEP_S)

    assert exit_code == 3
    assert "was taken over by process" in run.directory.driver_log.read_text()
    sequences = [envelope.sequence for envelope in successor.poll()]
    assert sequences == list(range(1, len(sequences) + 1))
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


@pytest.mark.parametrize("moment", [KillMoment.NOW, KillMoment.ALIGNING, KillMoment.COMMITTING])
def test_a_kill_request_is_answered_after_the_slot_has_died(
    tmp_path: Path, moment: KillMoment
) -> None:
    request_id = RequestId("kill")
    kill = KillSlot(request_id=request_id, requested_by="t", reason="t", slot=1, moment=moment)
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        submit(run.directory, kill)
        run.wait_for(lambda _: bool(run.of(RequestEnded)), STEP_S)

    (answer,) = run.of(RequestEnded)
    (lost,) = run.of(SlotLost)
    assert answer.event.outcome is RequestOutcome.SUCCEEDED  # type: ignore[attr-defined]
    assert answer.event.message == f"Slot 1 (pid {lost.event.pid}) is dead."  # type: ignore[attr-defined]
    assert lost.sequence < answer.sequence


@pytest.mark.parametrize("moment", [KillMoment.RESTORING, KillMoment.OPENED])
def test_a_kill_at_a_startup_moment_kills_a_slot_and_its_replacement(
    tmp_path: Path, moment: KillMoment
) -> None:
    who = {"request_id": RequestId("kill"), "requested_by": "t", "reason": "t"}
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        submit(run.directory, KillSlot(slot=1, moment=moment, **who))
        run.wait_for(lambda _: bool(run.of(RequestEnded)), STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    pids = [each.event.pid for each in run.of(SlotLost)]  # type: ignore[attr-defined]
    (answer,) = run.of(RequestEnded)
    assert answer.event.message == f"Slot 1 (pid {pids[1]}) is dead."  # type: ignore[attr-defined]
    assert answer.event.outcome is RequestOutcome.SUCCEEDED  # type: ignore[attr-defined]
    assert [each.attempt for each in run.of(SlotLost)] == [1, 2]
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_a_kill_request_fails_if_its_attempt_ends_first(tmp_path: Path) -> None:
    request_id = RequestId("kill")
    kill = KillSlot(
        request_id=request_id, requested_by="t", reason="t", slot=1, moment=KillMoment.ALIGNING
    )
    rarely = {"execution.checkpointing.interval": "1 h"}
    with hosted_run(tmp_path, LONGER, settings=rarely) as run:
        run.wait_for(lambda _: len(run.of(SlotConnected)) == 2, STEP_S)
        submit(run.directory, kill)
        run.wait_for(lambda _: bool(run.of(RequestAccepted)), STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        run.wait_for(lambda _: bool(run.of(RequestEnded)), STEP_S)

    (answer,) = run.of(RequestEnded)
    assert answer.event.outcome is RequestOutcome.FAILED  # type: ignore[attr-defined]
    assert answer.event.message == "Attempt 1 ended before slot 1 came to 'aligning'."  # type: ignore[attr-defined]


def test_an_expired_kill_request_kills_no_process(tmp_path: Path) -> None:
    over = {"requested_by": "t", "reason": "t", "within_s": 0.0}
    at_once = KillSlot(request_id=RequestId("slot"), slot=1, moment=KillMoment.CUTTING, **over)
    moment = DriverKillMoment.PUBLISHED
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        submit(run.directory, at_once)
        submit(run.directory, KillDriver(request_id=RequestId("driver"), moment=moment, **over))
        run.wait_for(lambda _: len(run.of(RequestAccepted)) == 2, STEP_S)
        after = len(run.completed()) + 3
        run.wait_for(lambda _: len(run.completed()) >= after, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(SlotLost) == []


def test_a_run_waits_for_a_slot_with_slow_storage(tmp_path: Path) -> None:
    slow = SlowSlot(
        request_id=RequestId("slow"),
        requested_by="t",
        reason="t",
        slot=1,
        delay_ms=700,
        for_ms=60_000,
    )
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        submit(run.directory, slow)
        run.wait_for(lambda _: 1 in delayed(run, 700), STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    (answer,) = run.of(RequestEnded)
    assert answer.event.message == (  # type: ignore[attr-defined]
        "Each upload of slot 1 takes 0.7 s longer for 60 s from now on."
    )
    assert 1 in delayed(run, 700)
    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred) == []
    assert_exact(tmp_path / "output")


@pytest.mark.parametrize(
    ("moment", "slot"), [(DriverKillMoment.PUBLISHED, None), (DriverKillMoment.REWINDING, 1)]
)
def test_a_requested_kill_of_the_driver_happens_once_at_its_moment(
    tmp_path: Path, moment: DriverKillMoment, slot: int | None
) -> None:
    who = {"request_id": RequestId("kill"), "requested_by": "t", "reason": "t"}
    kill = KillDriver(moment=moment, slot=slot, **who)
    with hosted_run(tmp_path, LONGER, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        submit(run.directory, kill)
        exit_code = run.process.wait(STEP_S)
        with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
            hurry(tmp_path)
            ended = successor.wait_until_over(STEP_S)

    assert exit_code == -signal.SIGKILL
    assert len(run.of(SlotLost)) == (slot is not None)
    (answer,) = successor.of(RequestEnded)
    assert answer.event.outcome is RequestOutcome.SUCCEEDED  # type: ignore[attr-defined]
    assert answer.event.message == "The driver that was to be killed is dead."  # type: ignore[attr-defined]
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def delayed(run: DriverProcess, at_least_ms: float) -> set[int]:
    """Returns the subtasks whose upload took that long."""
    events = (each.event for each in run.of(SubtaskAcknowledged))
    phases = [each.phases for each in events if isinstance(each, SubtaskAcknowledged)]
    return {each.subtask for each in phases if each.async_ms >= at_least_ms}
