"""A subtask declines, with Flink's reason, a checkpoint that a newer barrier or a marker ended."""

from pathlib import Path

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.elements import Barrier, CancelCheckpoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import BarrierOptions, CheckpointingMode
from pipelines.protocol.effects import Abort, CancelDownstream, Overtake
from pipelines.runtime.subtask.gate_alignment import declines
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from pipelines.runtime.subtask.subtask_reporter import failure_reason
from tests.unit.runtime.hosted import COUNTED, LEFT, RIGHT, JoiningSubtask

ALIGNED = BarrierOptions(mode=CheckpointingMode.EXACTLY_ONCE)
SUBSUMED = CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED
CANCELLED = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
ONE, TWO = CheckpointId(1), CheckpointId(2)


@pytest.mark.parametrize("options", [ALIGNED, COUNTED])
def test_a_newer_barrier_that_ends_an_alignment_is_reported(
    tmp_path: Path, options: BarrierOptions
) -> None:
    host = JoiningSubtask(tmp_path, options=options)

    host.inputs[LEFT].send(barrier(ONE))
    host.consume()
    host.inputs[RIGHT].send(barrier(TWO))  # upstream gave up 1 before its barrier
    host.inputs[LEFT].send(barrier(TWO))
    host.consume()

    assert declined(host) == [(1, SUBSUMED)]
    assert list(host.reporter.snapshots) == [2]


@pytest.mark.parametrize("options", [ALIGNED, COUNTED])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_cancellation_marker_is_reported_once(
    tmp_path: Path, options: BarrierOptions, has_begun: bool
) -> None:
    host = JoiningSubtask(tmp_path, options=options)

    if has_begun:
        host.inputs[LEFT].send(barrier(ONE))
        host.consume()
    for side in (RIGHT,) if has_begun else (LEFT, RIGHT):
        host.inputs[side].send(CancelCheckpoint(ONE))
    host.consume()

    assert declined(host) == [(1, CANCELLED)]
    assert host.reporter.snapshots == {}


def test_a_checkpoint_aborted_by_the_coordinator_is_not_declined(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(barrier(ONE))
    host.consume()

    host.subtask.mailbox.post(CheckpointAborted(ONE))
    host.consume()
    host.inputs[RIGHT].send(barrier(ONE))
    host.consume()

    assert declined(host) == []


def test_an_aborted_checkpoint_is_cancelled_unless_a_newer_one_subsumes_it() -> None:
    recorded = declines(ONE, [Abort(ONE)])
    overtaken = declines(TWO, [Abort(ONE), Overtake(TWO, frozenset())])
    both = declines(TWO, [Abort(ONE), CancelDownstream(TWO)])

    assert recorded == {ONE: CANCELLED}
    assert overtaken == {ONE: SUBSUMED}
    assert both == {ONE: SUBSUMED, TWO: CANCELLED}


def declined(host: JoiningSubtask) -> list[tuple[int, CheckpointFailureReason]]:
    return [(number, failure_reason(error)) for number, error in host.reporter.declines]


def barrier(checkpoint_id: CheckpointId) -> Barrier:
    return Barrier(checkpoint_id=checkpoint_id, trigger_ms=0)
