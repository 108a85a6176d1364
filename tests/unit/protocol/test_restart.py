"""Restart: a bounded number of restarts between two completed checkpoints."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.protocol.restart import FixedDelayRestart, GiveUp, RestartAfter


@pytest.mark.parametrize("seed", range(100))
def test_it_gives_up_exactly_when_the_attempts_since_the_last_progress_are_used(seed: int) -> None:
    rng = random.Random(seed)
    attempts = rng.randint(0, 4)
    restart = FixedDelayRestart(attempts=attempts, delay_ms=100)
    failures = 0

    for _ in range(50):
        if rng.random() < 0.3:
            restart.on_progress()
            failures = 0
            continue
        failures += 1
        assert isinstance(restart.on_failure(), RestartAfter) == (failures <= attempts)


def test_a_restart_comes_after_the_configured_delay() -> None:
    assert FixedDelayRestart(attempts=1, delay_ms=250).on_failure() == RestartAfter(250)


def test_giving_up_tells_the_count_and_the_setting() -> None:
    restart = FixedDelayRestart(attempts=1, delay_ms=0)
    restart.on_failure()

    verdict = restart.on_failure()

    assert verdict == GiveUp(
        "It failed again after 1 restarts without a completed checkpoint in between "
        "(restart-strategy.fixed-delay.attempts = 1)."
    )


@pytest.mark.parametrize(("attempts", "delay_ms"), [(-1, 0), (0, -1)])
def test_negative_bounds_are_a_bug(attempts: int, delay_ms: float) -> None:
    with pytest.raises(InvariantViolated):
        FixedDelayRestart(attempts=attempts, delay_ms=delay_ms)
