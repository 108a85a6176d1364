"""The gate's own rules. The contract suite tests the promises of every channel."""

import pyarrow as pa
import pytest

from pipelines.channels import gate as gate_module
from pipelines.channels.channel import MAX_QUEUED_MARKS, ChannelClosed
from pipelines.channels.gate import Gate, Inlet
from pipelines.domain.elements import Barrier, Element, Records, Watermark, WatermarkStatus
from pipelines.domain.errors import InvariantViolated, ProtocolError
from pipelines.domain.ids import ChannelId, CheckpointId

A, B = ChannelId("a"), ChannelId("b")
RECORDS = Records(pa.record_batch({"n": [1]}))


def test_a_channel_has_one_writer() -> None:
    gate = Gate([A])
    attach(gate, A)

    with pytest.raises(ProtocolError, match="already has a writer"):
        attach(gate, A)


def test_a_gate_accepts_only_its_own_channels() -> None:
    gate = Gate([A])

    for name_one in (gate.hold_back, gate.resume, lambda channel: attach(gate, channel)):
        with pytest.raises(InvariantViolated, match="an input of this gate"):
            name_one(B)


@pytest.mark.parametrize("arguments", [([A, A],), ([A], 0)])
def test_a_gate_with_impossible_arguments_is_refused(
    arguments: tuple[list[ChannelId], int],
) -> None:
    with pytest.raises(InvariantViolated):
        Gate(*arguments)


def test_the_number_of_unread_marks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MAX_QUEUED_MARKS", 3)
    inlet, _ = attach(Gate([A]), A)
    for i in range(3):
        inlet.offer(barrier(i), 0)

    with pytest.raises(ProtocolError, match="3 marks wait unread"):
        inlet.offer(barrier(3), 0)


def test_a_stalled_reader_is_left_with_one_watermark_and_one_status() -> None:
    """A filter that drops every record still passes event time on."""
    gate = Gate([A])
    inlet, _ = attach(gate, A)

    for i in range(2 * MAX_QUEUED_MARKS):
        inlet.offer(Watermark(i), 0)
        if i % 1_000 == 0:
            inlet.offer(WatermarkStatus(is_idle=i % 2_000 == 0), 0)

    assert gate.poll() == (A, WatermarkStatus(is_idle=False))
    assert gate.poll() == (A, Watermark(2 * MAX_QUEUED_MARKS - 1))
    assert gate.poll() is None


@pytest.mark.parametrize("between", [RECORDS, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)])
def test_only_adjacent_watermarks_are_merged(between: Element) -> None:
    gate = Gate([A])
    inlet, _ = attach(gate, A)
    sent = [Watermark(1), Watermark(2), between, Watermark(3), Watermark(4), RECORDS]

    for element in sent:
        inlet.offer(element, int(isinstance(element, Records)))

    received = [polled[1] for polled in iter(gate.poll, None)]
    assert received == [Watermark(2), between, Watermark(4), RECORDS]


def test_credit_goes_back_in_steps_of_a_quarter() -> None:
    gate = Gate([A], capacity_bytes=100)
    inlet, returned = attach(gate, A)
    for _ in range(9):
        inlet.offer(RECORDS, 10)

    for _ in range(9):
        gate.poll()

    assert returned == [30, 30, 30]


def test_withheld_credit_cannot_be_spent() -> None:
    gate = Gate([A], capacity_bytes=100)
    inlet, _ = attach(gate, A)
    inlet.offer(RECORDS, 20)
    gate.poll()
    inlet.offer(RECORDS, 80)

    with pytest.raises(ProtocolError, match="overrun"):
        inlet.offer(RECORDS, 1)


def test_the_reader_is_woken_once_for_many_elements() -> None:
    gate = Gate([A, B])
    inlets = [attach(gate, channel)[0] for channel in (A, B)]
    woken: list[bool] = []
    gate.on_available(lambda: woken.append(True))

    for inlet in inlets * 3:
        inlet.offer(RECORDS, 1)

    assert woken == [True]


def test_a_held_back_channel_does_not_wake_the_reader() -> None:
    gate = Gate([A])
    inlet, _ = attach(gate, A)
    woken: list[bool] = []
    gate.on_available(lambda: woken.append(True))

    gate.hold_back(A)
    inlet.offer(RECORDS, 1)

    assert woken == []


def test_holding_back_and_resuming_twice_changes_nothing() -> None:
    gate = Gate([A])
    inlet, _ = attach(gate, A)
    inlet.offer(RECORDS, 1)

    gate.hold_back(A)
    gate.hold_back(A)
    gate.resume(A)
    gate.resume(A)

    assert gate.poll() == (A, RECORDS)
    assert gate.poll() is None


def test_a_closed_gate_drops_late_elements_and_accepts_no_writer() -> None:
    gate = Gate([A, B])
    inlet, _ = attach(gate, A)
    woken: list[bool] = []
    gate.on_available(lambda: woken.append(True))

    gate.close()
    inlet.offer(RECORDS, 1)

    assert woken == [True], "the reader learns that it is over"
    assert [s.queued_bytes for s in gate.statistics()] == [0, 0]
    with pytest.raises(ChannelClosed):
        attach(gate, B)


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(number + 1), trigger_ms=0)


def attach(gate: Gate, channel: ChannelId) -> tuple[Inlet, list[int]]:
    """Returns the inlet and a list that collects the credit as it comes back."""
    returned: list[int] = []
    inlet = gate.attach(channel, return_credit=returned.append, on_close=lambda reason: None)
    return inlet, returned
