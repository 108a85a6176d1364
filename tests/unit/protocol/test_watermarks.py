"""Watermarks: event time is the least watermark of the inputs that are not idle."""

import random

import pytest

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.protocol.watermarks import EventTimeMark, WatermarkMerger

IDLE, ACTIVE = WatermarkStatus(is_idle=True), WatermarkStatus(is_idle=False)


@pytest.mark.parametrize("seed", range(200))
def test_event_time_is_the_least_open_watermark_and_only_grows(seed: int) -> None:
    rng = random.Random(seed)
    inputs = list("abcd"[: rng.randint(1, 4)])
    merger = WatermarkMerger(inputs)
    newest = dict.fromkeys(inputs, MIN_WATERMARK_MS)
    told = [MIN_WATERMARK_MS]

    while newest:
        name = rng.choice(list(newest))
        if rng.random() < 0.05:
            del newest[name]
            told += times_in(merger.on_end(name))
        else:
            timestamp_ms = rng.randint(-50, 50)  # may go back, which changes nothing
            newest[name] = max(newest[name], timestamp_ms)
            told += times_in(merger.on_watermark(name, timestamp_ms))

        expected = max(told[-1], min(newest.values(), default=MAX_WATERMARK_MS))
        assert merger.current_ms == told[-1] == expected

    assert told == sorted(set(told))
    assert told[-1] == MAX_WATERMARK_MS


@pytest.mark.parametrize("seed", range(200))
def test_idle_inputs_hold_nothing_back_and_active_ones_are_never_passed(seed: int) -> None:
    rng = random.Random(seed)
    inputs = list("abcd"[: rng.randint(1, 4)])
    merger = WatermarkMerger(inputs)
    newest = dict.fromkeys(inputs, MIN_WATERMARK_MS)
    idle: set[str] = set()
    never_idle = set(inputs)
    said_idle = False
    told = [MIN_WATERMARK_MS]

    for step in range(60):
        name = rng.choice(inputs)
        if rng.random() < 0.3:
            marks = merger.on_status(name, is_idle=name not in idle)
            idle ^= {name}
            never_idle.discard(name)
        elif name in idle:
            continue  # an idle input must first say that it is active
        else:
            newest[name] = max(newest[name], step + rng.randint(-30, 5))
            marks = merger.on_watermark(name, newest[name])
        told += times_in(marks)
        for mark in marks:
            said_idle = mark.is_idle if isinstance(mark, WatermarkStatus) else said_idle

        assert said_idle == merger.is_idle == (len(idle) == len(inputs))
        assert told == sorted(set(told))
        assert all(merger.current_ms <= newest[other] for other in never_idle)
        assert merger.current_ms >= min(
            (newest[i] for i in inputs if i not in idle), default=max(newest.values())
        )


def test_one_silent_input_holds_event_time_back_until_it_is_idle() -> None:
    merger = WatermarkMerger("ab")

    assert merger.on_watermark("a", 100) == []
    assert merger.on_status("b", is_idle=True) == [Watermark(100)]
    assert merger.on_watermark("a", 120) == [Watermark(120)]


def test_an_input_that_was_idle_counts_again_once_it_has_caught_up() -> None:
    merger = WatermarkMerger("ab")
    merger.on_watermark("a", 100)
    merger.on_status("b", is_idle=True)

    assert merger.on_status("b", is_idle=False) == []
    assert merger.on_watermark("b", 50) == []
    assert merger.on_watermark("a", 120) == [Watermark(120)]  # b is behind and holds nothing back
    assert merger.on_watermark("b", 130) == []
    assert merger.on_watermark("a", 140) == [Watermark(130)]  # now b holds it back


def test_when_all_inputs_are_idle_the_furthest_watermark_precedes_idleness() -> None:
    merger = WatermarkMerger("ab")
    merger.on_watermark("a", 100)
    merger.on_watermark("b", 70)

    assert merger.on_status("b", is_idle=True) == [Watermark(100)]
    assert merger.on_status("a", is_idle=True) == [IDLE]
    assert merger.on_status("a", is_idle=False) == [ACTIVE]
    assert merger.on_watermark("a", 110) == [Watermark(110)]


def test_event_time_moves_before_the_idle_status_is_sent() -> None:
    merger = WatermarkMerger("ab")
    merger.on_watermark("a", 100)
    merger.on_watermark("b", 70)
    merger.on_status("a", is_idle=True)

    assert merger.on_status("b", is_idle=True) == [Watermark(100), IDLE]


def test_an_active_status_is_sent_before_event_time_moves() -> None:
    merger = WatermarkMerger("a")
    merger.on_status("a", is_idle=True)

    assert merger.on_end("a") == [ACTIVE, Watermark(MAX_WATERMARK_MS)]


def test_the_end_of_the_slowest_input_lets_event_time_move() -> None:
    merger = WatermarkMerger("ab")
    merger.on_watermark("a", 100)

    assert merger.on_end("b") == [Watermark(100)]


def test_the_output_is_idle_after_the_last_active_input_ends() -> None:
    merger = WatermarkMerger("ab")
    merger.on_watermark("b", 7)
    merger.on_status("b", is_idle=True)
    merger.on_watermark("a", 50)

    assert merger.on_watermark("a", MAX_WATERMARK_MS) == [Watermark(MAX_WATERMARK_MS)]
    assert merger.on_end("a") == [IDLE]


def test_a_newly_opened_input_holds_event_time_back() -> None:
    merger = WatermarkMerger("a")
    merger.on_watermark("a", 5)
    merger.on_open("b")

    assert merger.on_watermark("a", 9) == []
    assert merger.on_watermark("b", 7) == [Watermark(7)]


def test_restored_event_time_does_not_go_back_for_replayed_records() -> None:
    merger = WatermarkMerger("ab", restored_ms=50)

    assert merger.on_watermark("a", 60) == []  # b may still have records from before
    assert merger.current_ms == 50
    assert merger.on_watermark("b", 55) == [Watermark(55)]


def times_in(marks: list[EventTimeMark]) -> list[int]:
    return [mark.timestamp_ms for mark in marks if isinstance(mark, Watermark)]
