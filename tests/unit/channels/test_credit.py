"""Credit: when a writer may pass. The contract suite tests its effect on channels."""

import pytest

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import Credit


def test_an_element_passes_while_any_credit_is_left() -> None:
    credit = opened(10)

    credit.take(9)
    assert credit.lets_pass(is_free=False)
    credit.take(1_000)

    assert not credit.lets_pass(is_free=False)


def test_free_elements_pass_without_credit() -> None:
    credit = opened(10)
    credit.take(10)

    assert credit.lets_pass(is_free=True)


def test_nothing_passes_before_the_channel_is_open() -> None:
    assert not Credit().lets_pass(is_free=True)


def test_returned_credit_lets_the_writer_pass_and_wakes_it_once() -> None:
    credit = opened(10)
    credit.take(15)
    calls: list[None] = []
    credit.on_available(lambda: calls.append(None))
    calls.clear()

    assert credit.try_give_back(5)
    assert not credit.lets_pass(is_free=False)
    assert calls == []
    assert credit.try_give_back(1)
    assert credit.try_give_back(1)

    assert credit.lets_pass(is_free=False)
    assert len(calls) == 1


def test_more_credit_than_was_taken_is_refused() -> None:
    credit = opened(10)
    credit.take(4)

    assert not credit.try_give_back(5)
    assert credit.try_give_back(4)


def test_a_channel_opens_once_and_wakes_its_writer() -> None:
    credit = Credit()
    calls: list[None] = []
    credit.on_available(lambda: calls.append(None))
    calls.clear()

    assert credit.open(10)
    assert len(calls) == 1
    assert not credit.open(20)
    assert not credit.try_give_back(1)


def test_the_first_reason_to_close_is_kept_and_the_writer_is_woken() -> None:
    credit = opened(10)
    calls: list[None] = []
    credit.on_available(lambda: calls.append(None))
    calls.clear()

    credit.close("the first")
    credit.close("the second")

    assert calls
    with pytest.raises(ChannelClosed, match="the first"):
        credit.lets_pass(is_free=True)


def opened(capacity_bytes: int) -> Credit:
    credit = Credit()
    assert credit.open(capacity_bytes)
    return credit
