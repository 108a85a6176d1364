"""A subtask's time: every millisecond is counted once, even during a wait."""

import random

import pytest

from pipelines.runtime.slot.subtask_reports import ratios
from pipelines.runtime.subtask.subtask_reporter import Load, Spending, Spent


@pytest.mark.parametrize("seed", range(20))
def test_every_millisecond_is_spent_on_one_thing(seed: int) -> None:
    rng = random.Random(seed)
    load, now_ms = Load(100.0), 100.0
    expected = dict.fromkeys(Spending, 0.0)

    for _ in range(50):
        spending, passed_ms = rng.choice(list(Spending)), rng.uniform(0, 30)
        load = load.turned(spending, now_ms)
        expected[spending] += passed_ms
        now_ms += passed_ms

    spent = load.spent(now_ms)
    assert spent.busy_ms == pytest.approx(expected[Spending.BUSY])
    assert spent.idle_ms == pytest.approx(expected[Spending.IDLE])
    assert spent.backpressured_ms == pytest.approx(expected[Spending.BACKPRESSURED])


def test_an_unfinished_wait_is_already_counted_as_idle() -> None:
    waiting = Load(0.0).turned(Spending.IDLE, 10.0)

    first, second = waiting.spent(260.0), waiting.spent(510.0)

    assert ratios(first, second) == (0.0, 1.0, 0.0)


def test_the_three_ratios_sum_to_one() -> None:
    before, now = Spent(10.0, 10.0, 10.0), Spent(20.0, 60.0, 50.0)

    assert ratios(before, now) == (0.1, 0.5, 0.4)


def test_a_turn_between_two_readings_makes_no_ratio_negative() -> None:
    before, now = Spent(10.0, 0.0, 0.0), Spent(9.9, 500.0, 0.0)

    assert ratios(before, now) == (0.0, 1.0, 0.0)


def test_two_readings_at_the_same_moment_say_idle() -> None:
    same = Spent(1.0, 2.0, 3.0)

    assert ratios(same, same) == (0.0, 1.0, 0.0)
