"""A subtask makes way for uploads that starve, for as long as that helps and delays no barrier."""

import threading
from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier, Element, Records
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from pipelines.runtime.subtask.snapshots.upload_threads import (
    LATE_MS,
    LONGEST_MS,
    LOOK_MS,
    UPLOAD_THREADS,
    MakingWay,
    UploadThreads,
)
from pipelines.runtime.subtask.subtask import Step
from tests.unit.runtime.fakes import ManualClock, batch_of
from tests.unit.runtime.hosted import LEFT, RIGHT, JoiningSubtask, LaterExecutor


def made_way_ms(*, share: float, share_with_way: float, lasts_ms: float) -> float:
    """Returns for how long subtasks make way for one upload that gets these shares of a processor.

    They look every 5 ms.
    """
    machine, spent_ms, made_ms, step_ms = MakingWay(), 0.0, 0.0, 5.0
    machine.on_started(0.0, spent_ms)
    for turn in range(1, int(lasts_ms / step_ms) + 1):
        makes_way = machine.makes_way(turn * step_ms, spent_ms)
        made_ms += step_ms * makes_way
        spent_ms += step_ms * (share_with_way if makes_way else share)
    return made_ms


def test_subtasks_make_way_for_a_starving_upload_until_it_is_done() -> None:
    assert made_way_ms(share=0.3, share_with_way=0.95, lasts_ms=400.0) == 400.0 - LATE_MS + 5.0


def test_subtasks_never_make_way_longer_than_the_limit() -> None:
    made_ms = made_way_ms(share=0.3, share_with_way=0.95, lasts_ms=60_000.0)

    assert made_ms == LONGEST_MS


def test_subtasks_make_way_for_one_look_if_the_upload_waits_for_the_store() -> None:
    made_ms = made_way_ms(share=0.2, share_with_way=0.2, lasts_ms=60_000.0)

    assert made_ms == LOOK_MS


def test_subtasks_do_not_make_way_for_an_upload_that_has_a_processor() -> None:
    assert made_way_ms(share=0.9, share_with_way=1.0, lasts_ms=60_000.0) == 0.0


def test_subtasks_do_not_make_way_for_a_short_upload() -> None:
    assert made_way_ms(share=0.0, share_with_way=1.0, lasts_ms=LATE_MS - 5.0) == 0.0


def test_the_limit_is_of_all_uploads_that_overlap_and_new_after_a_pause() -> None:
    machine, made_ms = MakingWay(), []
    now_ms = spent_ms = 0.0
    for _ in range(2):
        machine.on_started(now_ms, spent_ms)
        made = 0.0
        for _ in range(400):
            now_ms += 5.0
            machine.on_started(now_ms, spent_ms)
            machine.on_ended()
            makes_way = machine.makes_way(now_ms, spent_ms)
            made += 5.0 * makes_way
            spent_ms += 5.0 * (1.0 if makes_way else 0.1)
        machine.on_ended()
        assert not machine.makes_way(now_ms, spent_ms)
        made_ms.append(made)

    assert made_ms == [LONGEST_MS, LONGEST_MS]


def test_an_upload_that_ends_twice_is_an_error() -> None:
    machine = MakingWay()
    machine.on_started(0.0, 0.0)
    machine.on_ended()

    with pytest.raises(InvariantViolated):
        machine.on_ended()


def test_a_subtask_that_has_handed_over_its_part_takes_no_input_while_uploads_starve(
    tmp_path: Path,
) -> None:
    uploads = LaterExecutor()
    host = JoiningSubtask(tmp_path, uploads=uploads, uploads_starve=True)
    send_to_both(host, records(1), barrier(1), records(2))

    steps = steps_of(host)

    assert steps[-1] == Step.MAKES_WAY
    assert host.reporter.snapshots == {}
    assert queued_records(host) > 0
    host.uploads_starve = False
    steps_of(host)
    assert queued_records(host) == 0


def test_a_subtask_that_still_waits_for_a_barrier_does_not_make_way(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, uploads=LaterExecutor(), uploads_starve=True)
    send_to_both(host, records(1))
    host.inputs[LEFT].send(barrier(1))

    steps = steps_of(host)

    assert steps[-1] == Step.WAITS_FOR_INPUT


def test_a_subtask_does_not_make_way_for_a_checkpoint_that_is_over(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, uploads=LaterExecutor(), uploads_starve=True)
    send_to_both(host, records(1), barrier(1), records(2))
    assert steps_of(host)[-1] == Step.MAKES_WAY

    host.mailbox.post(CheckpointAborted(CheckpointId(1)))

    assert steps_of(host)[-1] == Step.WAITS_FOR_INPUT
    assert queued_records(host) == 0


def test_threads_that_work_do_not_starve_and_idle_ones_have_no_upload() -> None:
    clock = SystemClock()

    def work() -> bool:
        began_ms = clock.monotonic_ms()
        while clock.monotonic_ms() - began_ms < 10.0:
            continue
        return True

    with UploadThreads(clock) as threads:
        assert not threads.starve()
        assert all(each.result() for each in [threads.submit(work) for _ in range(4)])
    assert not threads.starve()


def test_threads_that_get_no_processor_starve_until_they_are_done() -> None:
    clock = ManualClock()
    threads = UploadThreads(clock)
    ends = [threading.Event() for _ in range(UPLOAD_THREADS)]
    uploads = [threads.submit(end.wait) for end in ends]

    clock.now_ms += 10 * LATE_MS

    assert threads.starve()
    for end in ends:
        end.set()
    threads.shutdown()
    assert all(each.result() for each in uploads)
    assert not threads.starve()


def send_to_both(host: JoiningSubtask, *elements: Element) -> None:
    for side in (LEFT, RIGHT):
        for element in elements:
            host.inputs[side].send(element)


def records(key: int) -> Records:
    return Records(batch_of([(key, key)]))


def barrier(checkpoint_id: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0)


def steps_of(host: JoiningSubtask) -> list[Step]:
    """Returns the steps of the subtask until it waits."""
    steps = [host.subtask.step()]
    while steps[-1] == Step.WORKED:
        steps.append(host.subtask.step())
    return steps


def queued_records(host: JoiningSubtask) -> int:
    return sum(each.queued_records for each in host.subtask.queued())
