"""A subtask whose output is full takes no input, but still answers barriers."""

from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier, Records
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.mailbox import CheckpointCompleted, InjectBarrier, Mail
from tests.unit.runtime.fakes import ListSource
from tests.unit.runtime.hosted import ReadingSubtask, ScriptedMailbox, WaitsForEver
from tests.unit.runtime.permits import permit

SPLIT = [(key, key) for key in range(9)]


def test_a_source_sends_nothing_while_its_output_is_full(tmp_path: Path) -> None:
    mailbox = ScriptedMailbox()
    host = ReadingSubtask(tmp_path, ListSource([SPLIT]), mailbox=mailbox)
    host.output.is_full = True

    host.subtask.run()

    assert [type(failure) for failure in host.reporter.failures] == [WaitsForEver]
    assert host.output.sent == []


def test_a_full_output_does_not_keep_a_subtask_from_answering_a_barrier(tmp_path: Path) -> None:
    mailbox = ScriptedMailbox()
    host = ReadingSubtask(tmp_path, ListSource([SPLIT]), mailbox=mailbox)
    host.output.is_full = True
    barrier = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)

    mailbox.script = [lambda: mailbox.post(InjectBarrier(barrier))]
    host.subtask.run()

    assert host.output.sent == [barrier]
    assert list(host.reporter.snapshots) == [1]


def test_the_wait_for_downstream_is_counted_as_backpressure(tmp_path: Path) -> None:
    mailbox = ScriptedMailbox()
    host = ReadingSubtask(tmp_path, ListSource([SPLIT]), mailbox=mailbox)
    host.output.is_full = True

    def a_reader_comes_after(passed_ms: float) -> None:
        host.clock.now_ms += passed_ms
        host.output.is_full = False

    began_ms = host.clock.now_ms

    def each_turn_takes_a_while() -> Mail | None:
        host.clock.now_ms += 5
        return take()

    take, mailbox.try_take = mailbox.try_take, each_turn_takes_a_while
    mailbox.script = [lambda: a_reader_comes_after(70)]
    host.subtask.run()

    spent = host.subtask.load.spent(host.clock.now_ms)
    assert spent.backpressured_ms == pytest.approx(70)
    assert spent.idle_ms == pytest.approx(0)
    assert spent.busy_ms == pytest.approx(host.clock.now_ms - began_ms - 70)
    assert [e.batch.num_rows for e in host.output.sent if isinstance(e, Records)] == [3, 3, 3]


def test_a_subtask_does_not_end_before_its_output_is_flushed(tmp_path: Path) -> None:
    mailbox = ScriptedMailbox()
    host = ReadingSubtask(tmp_path, ListSource([]), mailbox=mailbox)
    final = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_final=True)
    had_ended: list[bool] = []

    def complete() -> None:
        host.output.is_full = True
        mailbox.post(CheckpointCompleted(permit(1)))

    def take() -> None:
        had_ended.append(host.reporter.has_ended)
        host.output.is_full = False

    mailbox.script = [lambda: mailbox.post(InjectBarrier(final)), complete, take]
    host.subtask.run()

    assert had_ended == [False]
    assert host.reporter.has_ended
