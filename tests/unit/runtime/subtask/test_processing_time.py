"""The subtask's own thread fires processing-time timers between elements, never after the end."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier, EndOfInput, Records, Watermark
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.operators.processing.process import Process
from pipelines.operators.rows import Row
from pipelines.runtime.clocks import ProcessingTime
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted
from pipelines.runtime.subtask.subtask import PROCESSING_TIME_STEP_MS
from pipelines.stream import KeyedProcessFunction, RowContext
from tests.unit.runtime.fakes import SCHEMA, ManualClock, batch_of
from tests.unit.runtime.hosted import LEFT, RIGHT, JoiningSubtask, WaitsForEver
from tests.unit.runtime.permits import permit


class Reminder(KeyedProcessFunction):
    """Emits each key once more, 20 ms after it came."""

    def process_element(self, row: Row, context: RowContext) -> None:
        service = context.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + 20)

    process_other_element = process_element

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
        yield {"key": context.get_current_key(), "at": None}


def test_a_timer_fires_when_due_even_if_no_record_arrives(tmp_path: Path) -> None:
    host = subtask(tmp_path)
    seen: list[list[int]] = []

    def pass_time(by_ms: float) -> None:
        seen.append(list(host.sink.written))
        host.clock.now_ms += by_ms

    host.inputs[LEFT].send(records(1))
    steps_ms = (19, 1, PROCESSING_TIME_STEP_MS, 0)
    run(host, *(partial(pass_time, step_ms) for step_ms in steps_ms))

    assert seen == [[], [], [], [1]]


def test_a_subtask_sleeps_no_longer_than_its_timers_allow(tmp_path: Path) -> None:
    host = subtask(tmp_path)
    waits: list[float] = []
    waited = host.mailbox.wait

    def wait(timeout_ms: float) -> None:
        waits.append(timeout_ms)
        waited(timeout_ms)

    host.mailbox.wait = wait  # type: ignore[method-assign]
    run(host, lambda: host.inputs[LEFT].send(records(1)), lambda: None)

    assert waits[0] > PROCESSING_TIME_STEP_MS
    assert waits[1:] == [PROCESSING_TIME_STEP_MS] * 2


def test_no_timer_fires_after_the_final_barrier_unless_it_is_aborted(tmp_path: Path) -> None:
    host = subtask(tmp_path)
    host.inputs[LEFT].send(records(1))
    final = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_final=True)
    seen: list[list[int]] = []

    def send_barriers() -> None:
        for side in (LEFT, RIGHT):
            host.inputs[side].send(final)

    def pass_time() -> None:
        host.clock.now_ms += 1000

    def abort() -> None:
        seen.append(list(host.sink.written))
        host.mailbox.post(CheckpointAborted(CheckpointId(1)))

    run(host, send_barriers, pass_time, abort, lambda: None)

    assert seen == [[]]
    assert host.sink.written == [1]


def test_a_pending_timer_does_not_keep_a_subtask_from_ending(tmp_path: Path) -> None:
    host = subtask(tmp_path)
    for side in (LEFT, RIGHT):
        host.inputs[side].send(records(1))
        host.inputs[side].send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_final=True))
        host.inputs[side].send(Watermark(MAX_WATERMARK_MS))
        host.inputs[side].send(EndOfInput())

    host.run(lambda: host.mailbox.post(CheckpointCompleted(permit(1))))

    assert host.reporter.failures == []
    assert host.reporter.has_ended
    assert host.sink.written == []
    [operator] = [o for o in host.reporter.snapshots[1].operators if o.uid == "both"]
    assert [(s.state, s.rows) for s in operator.states] == [("timers.processing", 1)]


def test_processing_time_never_goes_back() -> None:
    clock = ManualClock(1000)
    time = ProcessingTime(clock)
    times = [time.now_ms()]

    for now_ms in (900, 999, 1001, 1000):
        clock.now_ms = now_ms
        times.append(time.now_ms())

    assert times == [1000, 1000, 1000, 1001, 1001]


def subtask(root: Path) -> JoiningSubtask:
    keys = (("key",), ("key",))
    return JoiningSubtask(root, operator=lambda: Process(Reminder(), keys, SCHEMA, "both"))


def run(host: JoiningSubtask, *script: object) -> None:
    """Runs until the script has ended and the subtask would wait for ever."""
    host.run(*script)  # type: ignore[arg-type]
    failures = host.reporter.failures
    with pytest.raises(WaitsForEver):
        raise failures[-1]


def records(*keys: int) -> Records:
    return Records(batch_of([(key, 0) for key in keys]))
