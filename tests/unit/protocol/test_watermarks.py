"""Watermarks: event time is the least of the open inputs, over random orders; then by name."""

import random

import pytest

from pipelines.domain.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.ids import ChannelId
from pipelines.protocol.watermarks import WatermarkMerger

A, B = ChannelId("a"), ChannelId("b")


@pytest.mark.parametrize("seed", range(200))
def test_event_time_is_the_least_open_watermark_and_only_grows(seed: int) -> None:
    rng = random.Random(seed)
    inputs = [ChannelId(name) for name in "abcd"[: rng.randint(1, 4)]]
    merger = WatermarkMerger(inputs)
    newest = dict.fromkeys(inputs, MIN_WATERMARK_MS)
    told = [MIN_WATERMARK_MS]

    while newest:
        channel = rng.choice(list(newest))
        if rng.random() < 0.05:
            del newest[channel]
            moved = merger.on_end(channel)
        else:
            timestamp_ms = rng.randint(-50, 50)  # may go back: then it says nothing new
            newest[channel] = max(newest[channel], timestamp_ms)
            moved = merger.on_watermark(channel, timestamp_ms)
        told += [] if moved is None else [moved]

        expected = max(told[-1], min(newest.values(), default=MAX_WATERMARK_MS))
        assert merger.current_ms == told[-1] == expected

    assert told == sorted(set(told))
    assert told[-1] == MAX_WATERMARK_MS


def test_one_silent_input_holds_event_time_back() -> None:
    merger = WatermarkMerger([A, B])

    assert merger.on_watermark(A, 100) is None
    assert merger.on_watermark(B, 70) == 70


def test_the_end_of_the_slowest_input_lets_event_time_move() -> None:
    merger = WatermarkMerger([A, B])
    merger.on_watermark(A, 100)

    assert merger.on_end(B) == 100


def test_a_repeated_watermark_is_not_told_again() -> None:
    merger = WatermarkMerger([A])
    merger.on_watermark(A, 5)

    assert merger.on_watermark(A, 5) is None
    assert merger.on_watermark(A, 4) is None


def test_restored_event_time_does_not_go_back_to_what_is_read_again() -> None:
    merger = WatermarkMerger([A], restored_ms=50)

    assert merger.on_watermark(A, 40) is None
    assert merger.current_ms == 50
    assert merger.on_watermark(A, 60) == 60
