"""A wall clock set back or forward an hour makes nothing expire, wait or look negative."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier
from pipelines.domain.events import CheckpointCompleted, SubtaskAcknowledged
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import BarrierOptions, CheckpointingMode, Heartbeat
from pipelines.runtime.control import Inject
from pipelines.runtime.slot.vigil import Vigil
from pipelines.runtime.subtask.gate_alignment import turns_at_ms
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.hosted import LEFT, RIGHT, JoiningSubtask
from tests.unit.runtime.hosted_checkpoints import INTERVAL_MS, TIMEOUT_MS, Master

HOUR_MS = 3_600_000
STEPS = pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])


@dataclass(slots=True)
class SetClock(ManualClock):
    """A clock whose wall time is off by `step_ms`, and whose monotonic time is not."""

    step_ms: int = 0

    def wall_ms(self) -> int:
        return 10 * HOUR_MS + int(self.now_ms) + self.step_ms


@STEPS
def test_the_coordinator_keeps_its_interval_and_timeout(tmp_path: Path, step_ms: int) -> None:
    clock = SetClock()
    master = Master(tmp_path, clock=clock)
    master.trigger()

    clock.step_ms = step_ms
    clock.now_ms += TIMEOUT_MS - 1
    master.host.on_time()
    expired_early = list(master.failed)
    clock.now_ms += 1
    master.host.on_time()
    under_way = len(master.attempt.of(Inject))

    assert expired_early == []
    assert [event.checkpoint_id for event in master.failed] == [1]
    assert under_way == 2, "the next one is due by the interval"


@STEPS
def test_a_clock_step_does_not_change_the_durations_of_a_checkpoint(
    tmp_path: Path, step_ms: int
) -> None:
    clock = SetClock()
    master = Master(tmp_path, clock=clock)
    master.trigger()

    clock.step_ms = step_ms
    clock.now_ms += 40
    master.acknowledge_all(1)

    (completed,) = master.of(CheckpointCompleted)
    acknowledged = [e.phases.acknowledged_ms for e in master.of(SubtaskAcknowledged)]
    assert completed.end_to_end_ms == 40
    assert acknowledged == [40, 40, 40]


@STEPS
def test_a_clock_step_does_not_change_the_pause_after_a_checkpoint(
    tmp_path: Path, step_ms: int
) -> None:
    clock = SetClock()
    pause = {"execution.checkpointing.min-pause": "5 s"}
    master = Master(tmp_path, pause, clock=clock)
    master.trigger()
    clock.now_ms += 5_000 - INTERVAL_MS
    master.host.on_time()
    master.acknowledge_all(1)

    clock.step_ms = step_ms
    clock.now_ms += 4_999
    master.host.on_time()
    before = len(master.completed), len(master.attempt.of(Inject))
    clock.now_ms += 1
    master.host.on_time()

    assert before == (1, 1)
    assert len(master.attempt.of(Inject)) == 2


@STEPS
def test_a_clock_step_does_not_make_a_slot_think_that_its_driver_is_silent(step_ms: int) -> None:
    clock = SetClock()
    vigil = Vigil(clock, Heartbeat(interval_ms=1_000, timeout_ms=10_000))
    vigil.on_heard()

    clock.step_ms = step_ms
    clock.now_ms += 900

    assert vigil.objection() is None


@STEPS
def test_a_barrier_starts_to_overtake_in_time_despite_a_wrong_slot_clock(step_ms: int) -> None:
    clock = SetClock(step_ms=step_ms)
    barrier = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=SetClock().wall_ms())
    options = BarrierOptions(
        mode=CheckpointingMode.EXACTLY_ONCE, unaligned=True, aligned_timeout_ms=500
    )

    due_ms = turns_at_ms(barrier, options, clock)

    assert due_ms is not None
    assert 0 <= due_ms - clock.monotonic_ms() <= 500


@STEPS
def test_no_phase_of_a_subtask_is_negative(tmp_path: Path, step_ms: int) -> None:
    host = JoiningSubtask(tmp_path)
    triggered_ms = host.subtask.clock.wall_ms() + step_ms

    for side in (LEFT, RIGHT):
        host.inputs[side].send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=triggered_ms))
    host.consume()

    phases = host.reporter.phases[1]
    assert min(phases.start_delay_ms, phases.alignment_ms, phases.sync_ms, phases.async_ms) >= 0
