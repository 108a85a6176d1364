"""Subtasks yield the processor to the threads that write checkpoints if a setting says so."""

import os
import sys
import threading
from pathlib import Path

import pytest

from pipelines.domain.events import CheckpointCompleted, SlotConnected
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.subtask.snapshots.upload_threads import UPLOAD_THREADS, UploadThreads
from pipelines.runtime.subtask.subtask import yield_processor
from tests.processes.host import hosted_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads"),
]

STEP_S = 60.0
NICE_FIELD = 18
"""Index in `/proc/PID/stat`; the thread's name, the only field with spaces, has index 1."""


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_an_upload_does_not_inherit_the_priority_of_its_subtask() -> None:
    normal, found = own_niceness(), list[int]()

    def subtask() -> None:
        yield_processor(3)
        found.append(own_niceness())
        found.extend(each.result() for each in [uploads.submit(own_niceness) for _ in range(9)])

    with UploadThreads(SystemClock()) as uploads:
        thread = threading.Thread(target=subtask)
        thread.start()
        thread.join()

    assert found == [normal + 3, *[normal] * 9]
    assert own_niceness() == normal


def test_a_thread_never_yields_below_the_lowest_priority() -> None:
    found = list[int]()

    def subtask() -> None:
        for _ in range(2):
            yield_processor(19)
            found.append(own_niceness())

    thread = threading.Thread(target=subtask)
    thread.start()
    thread.join()

    assert found == [19, 19]


@pytest.mark.parametrize(
    ("settings", "yields"), [({}, 0), ({"pipeline.subtasks.niceness": "10"}, 10)]
)
def test_subtasks_of_a_slot_yield_to_its_other_threads_as_the_settings_say(
    tmp_path: Path, settings: dict[str, str], yields: int
) -> None:
    with hosted_run(tmp_path, {"pause_ms": "1"}, settings=settings) as run:
        run.wait_for(lambda _: bool(run.of(CheckpointCompleted)), STEP_S)
        for envelope in run.of(SlotConnected):
            assert isinstance(envelope.event, SlotConnected)
            pid = envelope.event.pid
            normal = niceness(Path(f"/proc/{pid}/stat"))
            found = [niceness(each) - normal for each in Path(f"/proc/{pid}/task").glob("*/stat")]
            assert set(found) == {0, yields}
            assert found.count(0) > UPLOAD_THREADS


def niceness(stat: Path) -> int:
    return int(stat.read_text().rpartition(")")[2].split()[NICE_FIELD - 2])
