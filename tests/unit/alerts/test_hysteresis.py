"""Hysteresis: judged by a checker that looks at the whole history, then named corner cases."""

import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from ftdash.alerts.hysteresis import Absent, Band, Effect, Phase, Reading, Standing, at_first, judge
from pipelines.domain.errors import Rejected

BAND = Band(fire_above=60.0, fire_after_s=10.0, clear_below=30.0, clear_after_s=20.0)
HIGH, BETWEEN, LOW = 90.0, 45.0, 10.0
History = list[tuple[float, Reading]]  # (time in s, reading), oldest first


@pytest.mark.parametrize("seed", range(150))
def test_an_alert_fires_and_clears_exactly_when_the_history_requires_it(seed: int) -> None:
    rng = random.Random(seed)
    band = random_band(rng)
    history = random_history(rng, band)

    effects = run(band, history)

    check_alternating(effects)
    check_each_is_due(band, history, effects)


@pytest.mark.parametrize("seed", range(20))
def test_within_the_band_nothing_happens(seed: int) -> None:
    rng = random.Random(seed)
    history = [(5.0 * n, rng.uniform(30.0, 60.0)) for n in range(200)]

    assert set(run(BAND, history)) == {Effect.NONE}
    quiet_after_firing = run(BAND, [(-20.0, HIGH), (-10.0, HIGH), *history])
    assert quiet_after_firing.count(Effect.FIRED) == 1
    assert Effect.CLEARED not in quiet_after_firing


def test_a_value_that_flickers_around_a_threshold_never_fires() -> None:
    history = [(5.0 * n, HIGH if n % 2 else BETWEEN) for n in range(100)]

    assert set(run(BAND, history)) == {Effect.NONE}


def test_an_alert_fires_when_the_value_has_stayed_high_for_long_enough() -> None:
    assert run(BAND, [(0, HIGH), (5, HIGH), (9.9, HIGH), (10, HIGH), (15, HIGH)]) == [
        Effect.NONE,
        Effect.NONE,
        Effect.NONE,
        Effect.FIRED,
        Effect.NONE,
    ]


def test_an_alert_clears_when_the_value_has_stayed_low_for_long_enough() -> None:
    firing = Standing(Phase.FIRING, 0.0)

    assert run(BAND, [(5, LOW), (15, LOW), (24.9, LOW), (25, LOW)], firing) == [
        Effect.NONE,
        Effect.NONE,
        Effect.NONE,
        Effect.CLEARED,
    ]


def test_without_a_hold_time_one_reading_decides() -> None:
    band = Band(fire_above=2.0, fire_after_s=0.0, clear_below=1.0, clear_after_s=0.0)

    assert run(band, [(0, 3.0), (1, 0.0)]) == [Effect.FIRED, Effect.CLEARED]


def test_a_count_with_a_threshold_of_zero_clears_at_zero() -> None:
    band = Band(fire_above=0.0, fire_after_s=0.0, clear_below=0.0, clear_after_s=0.0)

    assert run(band, [(0, 1.0), (1, 0.0), (2, 0.0)]) == [
        Effect.FIRED,
        Effect.CLEARED,
        Effect.NONE,
    ]


def test_an_unknown_reading_is_evidence_for_nothing() -> None:
    unknown = Absent.UNKNOWN

    assert Effect.FIRED not in run(BAND, [(0, HIGH), (8, unknown), (12, HIGH), (20, HIGH)])
    firing = Standing(Phase.FIRING, 0.0)
    assert set(run(BAND, [(0, unknown), (99, unknown)], firing)) == {Effect.NONE}
    assert Effect.CLEARED not in run(BAND, [(0, LOW), (18, unknown), (21, LOW)], firing)


def test_an_alert_about_an_ended_subject_clears_at_once_and_never_fires() -> None:
    over = Absent.OVER

    assert run(BAND, [(0, over)], Standing(Phase.FIRING, 0.0)) == [Effect.CLEARED]
    assert run(BAND, [(0, over)], Standing(Phase.FALLING, 0.0)) == [Effect.CLEARED]
    assert run(BAND, [(0, HIGH), (8, over), (12, HIGH)]) == [Effect.NONE] * 3


def test_setting_the_clock_back_does_not_count_as_elapsed_time() -> None:
    standing, effect = judge(BAND, Standing(Phase.RISING, 1_000.0), HIGH, 500.0)

    assert (standing, effect) == (Standing(Phase.RISING, 500.0), Effect.NONE)


@pytest.mark.parametrize(
    ("band", "words"),
    [
        (Band(10.0, 0.0, 11.0, 0.0), "clear at or below"),
        (Band(10.0, 0.0, -1.0, 0.0), "cannot clear below 0"),
        (Band(10.0, -1.0, 5.0, 0.0), "has to hold"),
        (Band(10.0, 0.0, 5.0, 1e9), "has to hold"),
        (Band(float("nan"), 0.0, 5.0, 0.0), "clear at or below"),
        (Band(float("inf"), 0.0, 5.0, 0.0), "above at most 1e\\+15"),
        (Band(1e308, 0.0, 5.0, 0.0), "above at most 1e\\+15"),
    ],
)
def test_a_band_that_cannot_work_is_refused(band: Band, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        band.check()


def run(
    band: Band, history: Iterable[tuple[float, Reading]], standing: Standing | None = None
) -> list[Effect]:
    """Hosts the machine. It rebuilds the standing after each reading, as a database does."""
    effects = []
    for now_s, reading in history:
        before = standing or at_first(now_s)
        standing, effect = judge(band, before, reading, float(now_s))
        standing = Standing(Phase(str(standing.phase)), standing.since_s)
        effects.append(effect)
    return effects


def check_alternating(effects: list[Effect]) -> None:
    told = [effect for effect in effects if effect is not Effect.NONE]
    assert told == [Effect.FIRED, Effect.CLEARED] * (len(told) // 2) + told[len(told) // 2 * 2 :]
    assert not told or told[0] is Effect.FIRED


def check_each_is_due(band: Band, history: History, effects: list[Effect]) -> None:
    """Checks that an effect comes exactly when the readings since the last effect call for one."""
    is_firing, since = False, 0
    for index, effect in enumerate(effects):
        reading = history[index][1]
        if is_firing:
            held = held_s(history[since : index + 1], partial(is_low, band))
            is_due = reading is Absent.OVER or (held is not None and held >= band.clear_after_s)
        else:
            held = held_s(history[since : index + 1], partial(is_high, band))
            is_due = held is not None and held >= band.fire_after_s
        assert (effect is not Effect.NONE) == is_due, (index, history[: index + 1])
        if is_due:
            is_firing, since = not is_firing, index + 1


def held_s(history: History, holds: Callable[[Reading], bool]) -> float | None:
    """Returns how long `holds` has been true without a break, or None if it is false at the end."""
    began = None
    for now_s, reading in reversed(history):
        if not holds(reading):
            break
        began = now_s
    return None if began is None else history[-1][0] - began


def is_high(band: Band, reading: Reading) -> bool:
    return isinstance(reading, float) and reading > band.fire_above


def is_low(band: Band, reading: Reading) -> bool:
    if not isinstance(reading, float):
        return False
    return reading < band.clear_below or (band.clear_below == 0 and reading == 0)


def random_band(rng: random.Random) -> Band:
    fire_above = rng.choice([0.0, 1.0, 60.0])
    return Band(
        fire_above=fire_above,
        fire_after_s=rng.choice([0.0, 7.0, 20.0]),
        clear_below=fire_above * rng.choice([0.0, 0.5, 1.0]),
        clear_after_s=rng.choice([0.0, 7.0, 20.0]),
    )


def random_history(rng: random.Random, band: Band) -> History:
    """Draws readings that mostly stay the same for a while, so that something fires and clears."""
    now_s, history = 0.0, []
    choices: list[Reading] = [
        band.fire_above + 1,
        band.fire_above,
        (band.fire_above + band.clear_below) / 2,
        band.clear_below,
        max(0.0, band.clear_below - 1),
        Absent.UNKNOWN,
        Absent.OVER,
    ]
    while len(history) < 80:
        reading = rng.choices(choices, weights=[8, 2, 2, 2, 8, 1, 1])[0]
        for _ in range(rng.randint(1, 8)):
            now_s += rng.choice([1.0, 5.0, 5.0, 12.0])
            history.append((now_s, reading))
    return history
