"""The vigil: when a slot may no longer assume that its attempt is the current one."""

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.domain.settings import Heartbeat
from pipelines.runtime.slot.vigil import Vigil, Watch
from tests.unit.runtime.fakes import ManualClock

TIMEOUT_MS = 1_000
STEP_S = 60.0
HASTY = Heartbeat(interval_ms=1, timeout_ms=5)  # how often a watch asks


def test_a_slot_that_hears_from_its_driver_may_continue() -> None:
    clock, vigil = started()

    for _ in range(100):
        clock.now_ms += TIMEOUT_MS
        assert vigil.objection() is None
        vigil.on_heard()


def test_silence_of_the_driver_beyond_the_timeout_ends_the_slot() -> None:
    clock, vigil = started()
    clock.now_ms += TIMEOUT_MS / 2
    vigil.objection()

    clock.now_ms += TIMEOUT_MS / 2 + 1

    assert vigil.objection() == "the driver has been silent for 1.0 s"


def test_a_process_that_was_stopped_objects_despite_older_messages() -> None:
    clock, vigil = started()

    clock.now_ms += TIMEOUT_MS + 1
    vigil.on_heard()

    assert vigil.objection() == "this process was stopped for 1.0 s"


@pytest.mark.parametrize("later_ms", [0, 10, 10 * TIMEOUT_MS])
def test_an_objection_is_permanent_in_every_thread_even_if_the_driver_speaks(later_ms: int) -> None:
    clock, vigil = started()
    clock.now_ms += TIMEOUT_MS + 1
    vigil.objection()

    vigil.on_heard()
    clock.now_ms += later_ms

    assert vigil.objection() is not None
    with ThreadPoolExecutor(1) as another:
        assert another.submit(vigil.objection).result(STEP_S) is not None


def test_the_watch_ends_a_slot_once_even_if_nothing_polls_the_vigil() -> None:
    clock, vigil = started()
    ends: queue.Queue[str] = queue.Queue()
    watch = Watch(vigil, HASTY, ends.put)
    watch.start()

    clock.now_ms += TIMEOUT_MS + 1

    assert ends.get(timeout=STEP_S) == "this process was stopped for 1.0 s"
    watch.join(STEP_S)
    assert not watch.is_alive()
    assert ends.empty()


def test_a_closed_watch_never_ends_its_slot() -> None:
    clock, vigil = started()
    ends: queue.Queue[str] = queue.Queue()
    watch = Watch(vigil, HASTY, ends.put)
    watch.start()

    watch.close()
    watch.join(STEP_S)
    clock.now_ms += TIMEOUT_MS + 1

    assert not watch.is_alive()
    assert ends.empty()


def started() -> tuple[ManualClock, Vigil]:
    clock = ManualClock()
    return clock, Vigil(clock, Heartbeat(interval_ms=100, timeout_ms=TIMEOUT_MS))
