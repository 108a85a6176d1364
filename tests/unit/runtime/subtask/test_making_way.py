"""A subtask makes way for uploads that starve, for as long as that helps and delays no barrier."""

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier, Element, Records
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from pipelines.runtime.subtask.snapshots import upload_threads
from pipelines.runtime.subtask.snapshots.upload_threads import (
    LATE_MS,
    LONGEST_MS,
    LOOK_MS,
    UPLOAD_THREADS,
    MakingWay,
    Spent,
    UploadThreads,
    processor_times_of,
)
from pipelines.runtime.subtask.subtask import Step
from tests.unit.runtime.fakes import ManualClock, batch_of
from tests.unit.runtime.hosted import LEFT, RIGHT, JoiningSubtask, LaterExecutor

STEP_MS = 5.0


@dataclass
class Shares:
    """How much of the time uploads run and wait for a processor, at once and with the way free."""

    running: float
    waiting: float
    running_with_way: float
    waiting_with_way: float = 0.0


STARVED = Shares(running=0.3, waiting=0.6, running_with_way=0.9)
AT_THE_STORE = Shares(running=0.1, waiting=0.05, running_with_way=0.1)
STARVED_THEN_AT_THE_STORE = Shares(running=0.2, waiting=0.5, running_with_way=0.1)
WITH_A_PROCESSOR = Shares(running=0.95, waiting=0.02, running_with_way=1.0)


class Watched:
    """Uploads with these shares, and for how long subtasks that look every 5 ms make way."""

    def __init__(self, shares: Shares) -> None:
        self.machine = MakingWay()
        self.made_ms = 0.0
        self.looks = 0
        self._shares = shares
        self._now_ms = self._running_ms = self._waiting_ms = 0.0

    def start(self) -> None:
        self.machine.on_started(self._now_ms, self._spent)

    def go_on(self, ms: float) -> None:
        for _ in range(int(ms / STEP_MS)):
            self._now_ms += STEP_MS
            self.machine.on_time(self._now_ms, self._spent)
            makes_way, shares = self.machine.makes_way, self._shares
            self.made_ms += STEP_MS * makes_way
            self._running_ms += STEP_MS * (shares.running_with_way if makes_way else shares.running)
            self._waiting_ms += STEP_MS * (shares.waiting_with_way if makes_way else shares.waiting)

    def _spent(self) -> Spent:
        self.looks += 1
        return Spent(self._running_ms, self._waiting_ms)


def made_way_ms(shares: Shares, *, lasts_ms: float) -> float:
    watched = Watched(shares)
    watched.start()
    watched.go_on(lasts_ms)
    return watched.made_ms


def test_subtasks_make_way_for_a_starving_upload_until_it_is_done() -> None:
    assert made_way_ms(STARVED, lasts_ms=400.0) == 400.0 - LATE_MS + STEP_MS


def test_subtasks_never_make_way_longer_than_the_limit_and_one_look() -> None:
    assert LONGEST_MS <= made_way_ms(STARVED, lasts_ms=60_000.0) < LONGEST_MS + LOOK_MS


def test_subtasks_do_not_make_way_for_an_upload_that_waits_for_the_store() -> None:
    assert made_way_ms(AT_THE_STORE, lasts_ms=60_000.0) == 0.0


def test_subtasks_make_way_for_one_look_if_the_upload_then_waits_for_the_store() -> None:
    assert made_way_ms(STARVED_THEN_AT_THE_STORE, lasts_ms=60_000.0) == LOOK_MS


def test_subtasks_do_not_make_way_for_an_upload_that_has_a_processor() -> None:
    assert made_way_ms(WITH_A_PROCESSOR, lasts_ms=60_000.0) == 0.0


def test_subtasks_do_not_make_way_for_a_short_upload() -> None:
    assert made_way_ms(STARVED, lasts_ms=LATE_MS - STEP_MS) == 0.0


def test_the_limit_is_of_all_uploads_that_overlap_and_new_after_a_pause() -> None:
    watched, made_ms = Watched(STARVED), []
    for _ in range(2):
        watched.start()
        before_ms = watched.made_ms
        for _ in range(400):
            watched.start()
            watched.machine.on_ended()
            watched.go_on(STEP_MS)
        watched.machine.on_ended()
        assert watched.machine.is_idle
        assert not watched.machine.makes_way
        made_ms.append(watched.made_ms - before_ms)

    assert made_ms[0] == made_ms[1] < LONGEST_MS + LOOK_MS


def test_what_threads_have_spent_is_asked_for_once_per_look() -> None:
    watched = Watched(STARVED)
    watched.start()

    watched.go_on(LATE_MS + 2 * LOOK_MS)

    assert watched.looks == 4  # at the start, late, and after each look


def test_an_upload_that_ends_twice_is_an_error() -> None:
    machine = MakingWay()
    machine.on_started(0.0, lambda: Spent(0.0, 0.0))
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


def test_threads_without_an_upload_do_not_starve() -> None:
    with UploadThreads(SystemClock()) as threads:
        assert not threads.starve()
        assert threads.submit(int, "7").result() == 7

    assert not threads.starve()


def test_threads_that_wait_for_a_processor_starve_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, waited_ms = ManualClock(), [0.0]
    monkeypatch.setattr(upload_threads, "processor_times_of", lambda _: (0.0, waited_ms[0]))
    threads = UploadThreads(clock)
    ends = [threading.Event() for _ in range(UPLOAD_THREADS)]
    uploads = [threads.submit(end.wait) for end in ends]

    clock.now_ms += LATE_MS
    waited_ms[0] += LATE_MS

    assert threads.starve()
    for end in ends:
        end.set()
    threads.shutdown()
    assert all(each.result() for each in uploads)
    assert not threads.starve()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long threads wait")
def test_the_processor_time_of_a_thread_is_what_it_spent() -> None:
    begin_ms, _ = processor_times_of(threading.get_native_id())
    began_ms = time.thread_time() * 1000
    while time.thread_time() * 1000 - began_ms < 50.0:
        continue
    end_ms, waited_ms = processor_times_of(threading.get_native_id())

    assert 40.0 < end_ms - begin_ms < 500.0
    assert waited_ms >= 0.0


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
