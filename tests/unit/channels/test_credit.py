"""Credit: who may pass when. What it means for channels is the contract suite's."""

import threading

import pytest

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import Credit


def test_an_element_passes_while_any_credit_is_left() -> None:
    credit = opened(10)

    credit.take(9)
    credit.take(1_000)

    assert is_blocked(credit, 1)


def test_free_elements_pass_without_credit() -> None:
    credit = opened(10)
    credit.take(10)

    credit.take(0)


def test_nothing_passes_before_the_channel_is_open() -> None:
    credit = Credit()

    assert is_blocked(credit, 0)


def test_credit_that_comes_back_lets_the_writer_pass() -> None:
    credit = opened(10)
    credit.take(15)

    assert credit.try_give_back(5)
    assert is_blocked(credit, 1)
    assert credit.try_give_back(1)
    credit.take(1)


def test_more_credit_than_was_taken_is_refused() -> None:
    credit = opened(10)
    credit.take(4)

    assert not credit.try_give_back(5)
    assert credit.try_give_back(4)


def test_a_channel_opens_once() -> None:
    credit = opened(10)

    assert not credit.open(20)
    assert not credit.try_give_back(1)


def test_the_first_reason_for_the_end_is_kept() -> None:
    credit = opened(10)
    credit.close("the first")
    credit.close("the second")

    with pytest.raises(ChannelClosed, match="the first"):
        credit.take(0)


def test_the_wait_that_goes_on_counts() -> None:
    credit = opened(1)
    credit.take(1)
    assert credit.blocked_ms() == 0
    waiting = threading.Thread(target=credit.take, args=(1,), daemon=True)

    waiting.start()
    waiting.join(0.02)
    during_ms = credit.blocked_ms()
    credit.try_give_back(1)
    waiting.join(5)

    assert 0 < during_ms <= credit.blocked_ms()
    assert credit.blocked_ms() == credit.blocked_ms(), "the wait is over"


def opened(capacity_bytes: int) -> Credit:
    credit = Credit()
    assert credit.open(capacity_bytes)
    return credit


def is_blocked(credit: Credit, cost_bytes: int) -> bool:
    """Whether an element would have to wait."""
    passed = threading.Event()

    def take() -> None:
        try:
            credit.take(cost_bytes)
        except ChannelClosed:
            return
        passed.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(0.02)
    return not passed.is_set()
