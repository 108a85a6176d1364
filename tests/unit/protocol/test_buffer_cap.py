"""The buffers beyond the cap, by channel and in total."""

from pipelines.domain.ids import ChannelId
from pipelines.protocol.alignment import BufferCap

A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")


def test_a_channel_beyond_its_cap_is_named() -> None:
    cap = BufferCap(channel_bytes=10, subtask_bytes=0)

    assert cap.exceeded_by({A: 10, B: 11}) == {B}
    assert cap.exceeded_by({A: 10, B: 10}) == frozenset()


def test_channels_can_exceed_the_subtask_cap_together() -> None:
    cap = BufferCap(channel_bytes=0, subtask_bytes=10)

    assert cap.exceeded_by({A: 6, B: 5, C: 0}) == {A, B}
    assert cap.exceeded_by({A: 5, B: 5}) == frozenset()


def test_without_a_cap_nothing_is_too_much() -> None:
    cap = BufferCap(channel_bytes=0, subtask_bytes=0)

    assert not cap.is_set
    assert cap.exceeded_by({A: 1 << 40}) == frozenset()
