"""An alignment that holds back more than the cap allows: wait and report, overtake, or abort."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.channels.credit import cost_of
from pipelines.channels.gate import Gate
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.elements import Barrier, CancelCheckpoint, EndOfInput, Records
from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.ids import CheckpointId, Uid, channel_id
from pipelines.domain.settings import CapAction
from pipelines.protocol.alignment import BarrierAligner, UnalignedBarriers
from pipelines.runtime.subtask.subtask_reporter import failure_reason
from tests.unit.runtime.fakes import batch_of
from tests.unit.runtime.hosted import ALIGNED, LEFT, RIGHT, JoiningSubtask, RecordingOutput

BATCH = Records(batch_of([(key, key) for key in range(10)]))
CAP_BYTES = 2 * cost_of(BATCH)


def test_alignment_continues_to_wait_and_names_the_channel_over_the_cap(tmp_path: Path) -> None:
    host = capped(tmp_path, CapAction.WAIT)

    held_back(host, 3)
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    left, right = host.reporter.phases[1].channels
    assert (left.is_over_cap, right.is_over_cap) == (True, False)
    assert not host.reporter.phases[1].is_unaligned


def test_within_the_cap_no_channel_is_named(tmp_path: Path) -> None:
    host = capped(tmp_path, CapAction.ABORT)

    held_back(host, 2)
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    assert not any(channel.is_over_cap for channel in host.reporter.phases[1].channels)


def test_beyond_the_cap_the_barrier_starts_to_overtake(tmp_path: Path) -> None:
    host = capped(tmp_path, CapAction.UNALIGNED)

    held_back(host, 3)
    host.inputs[RIGHT].send(BATCH)
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    assert host.reporter.phases[1].is_unaligned
    assert len(host.sink.written) == 40


def test_a_savepoint_beyond_the_cap_waits(tmp_path: Path) -> None:
    host = capped(tmp_path, CapAction.UNALIGNED)
    savepoint = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True)

    held_back(host, 3, savepoint)
    host.inputs[RIGHT].send(savepoint)
    host.consume()

    assert not host.reporter.phases[1].is_unaligned


def test_beyond_the_cap_the_checkpoint_is_declined_and_records_flow_again(tmp_path: Path) -> None:
    host = capped(tmp_path, CapAction.ABORT)

    held_back(host, 3)
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    ((checkpoint_id, error),) = host.reporter.declines
    assert checkpoint_id == 1
    assert failure_reason(error) is CheckpointFailureReason.CHECKPOINT_DECLINED
    assert str(host.channels[LEFT]) in str(error)
    assert host.reporter.snapshots == {}
    assert len(host.sink.written) == 30, "what was held back is delivered"


def test_a_declined_checkpoint_is_cancelled_downstream_and_the_next_one_is_exact(
    tmp_path: Path,
) -> None:
    upstream = capped(tmp_path / "up", CapAction.ABORT)
    told = RecordingOutput(channel_id(Uid("both"), 0, Uid("next"), 0, 0))
    upstream.subtask.chain.broadcast = told.send  # type: ignore[method-assign]
    held_back(upstream, 3)
    assert told.sent == [CancelCheckpoint(CheckpointId(1))]

    downstream = JoiningSubtask(tmp_path / "down")
    downstream.inputs[RIGHT].send(barrier(1))
    downstream.inputs[RIGHT].send(BATCH)
    downstream.consume()
    assert downstream.sink.written == [], "it waits for the barrier of the other input"
    downstream.inputs[LEFT].send(told.sent[0])
    downstream.consume()
    assert len(downstream.sink.written) == 10, "a cancellation frees it at once"

    for side in (LEFT, RIGHT):
        downstream.inputs[side].send(barrier(2))
    downstream.consume()
    assert list(downstream.reporter.snapshots) == [2]
    assert len(downstream.seen_at(2)) == 10


@pytest.mark.parametrize("action", list(CapAction))
def test_a_separate_cap_limits_the_sum_of_the_inputs(tmp_path: Path, action: CapAction) -> None:
    options = replace(ALIGNED, subtask_cap_bytes=CAP_BYTES, cap_action=action)
    host = JoiningSubtask(tmp_path, options=options)

    held_back(host, 3)
    host.inputs[RIGHT].send(barrier(1))
    for side in (LEFT, RIGHT):
        host.inputs[side].send(EndOfInput())
    host.consume()

    assert len(host.sink.written) == 30
    assert bool(host.reporter.declines) == (action is CapAction.ABORT)


@pytest.mark.parametrize(
    ("action", "machine", "broken"),
    [
        (CapAction.UNALIGNED, UnalignedBarriers, UnalignedBarriers.on_time_is_up),
        (CapAction.UNALIGNED, Gate, Gate.record),
        (CapAction.ABORT, BarrierAligner, BarrierAligner.on_aborted),
    ],
)
def test_a_rule_violation_beyond_the_cap_names_the_events_before_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: CapAction,
    machine: type,
    broken: Callable[..., object],
) -> None:
    monkeypatch.setattr(machine, broken.__name__, breaks_a_rule)
    host = capped(tmp_path, action)

    with pytest.raises(InvariantViolated) as violated:
        held_back(host, 3)

    assert violated.value.last_events[-2:] == (
        f"barrier 1 of {host.channels[LEFT]}",
        "alignment of 1 holds back too much",
    )


def test_a_rule_violation_at_the_gate_names_the_events_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, Gate.hold_back.__name__, breaks_a_rule)
    host = capped(tmp_path, CapAction.WAIT)

    with pytest.raises(InvariantViolated) as violated:
        held_back(host, 1)

    assert violated.value.last_events == (f"barrier 1 of {host.channels[LEFT]}",)


def breaks_a_rule(*_: object) -> None:
    check(False, "this rule holds")


def capped(root: Path, action: CapAction) -> JoiningSubtask:
    options = replace(ALIGNED, channel_cap_bytes=CAP_BYTES, cap_action=action)
    return JoiningSubtask(root, options=options)


def held_back(host: JoiningSubtask, batches: int, mark: Barrier | None = None) -> None:
    """Lets this many batches wait behind the barrier of the left side."""
    host.inputs[LEFT].send(mark or barrier(1))
    host.consume()
    for _ in range(batches):
        host.inputs[LEFT].send(BATCH)
    host.consume()


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(number), trigger_ms=0)
