"""Restart strategies: when each gives up, and how long each waits."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.protocol.restart import (
    CURED_AFTER,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    GiveUp,
    NoRestart,
    RestartAfter,
)


def test_without_a_strategy_the_first_failure_ends_the_run() -> None:
    restart = NoRestart()
    restart.on_progress()

    assert restart.on_failure(0, 0) == GiveUp("It is not restarted (restart-strategy.type = none).")


@pytest.mark.parametrize("seed", range(100))
def test_fixed_delay_gives_up_exactly_when_the_attempts_since_progress_are_used(seed: int) -> None:
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
        assert isinstance(restart.on_failure(0, 0), RestartAfter) == (failures <= attempts)


def test_a_restart_comes_after_the_configured_delay() -> None:
    assert FixedDelayRestart(attempts=1, delay_ms=250).on_failure(0, 0) == RestartAfter(250)


def test_giving_up_reports_the_count_and_the_setting() -> None:
    restart = FixedDelayRestart(attempts=1, delay_ms=0)
    restart.on_failure(0, 0)

    verdict = restart.on_failure(0, 0)

    assert verdict == GiveUp(
        "It failed again after 1 restarts without a completed checkpoint in between "
        "(restart-strategy.fixed-delay.attempts = 1)."
    )


@pytest.mark.parametrize("seed", range(100))
def test_failure_rate_gives_up_exactly_when_too_many_fall_into_one_interval(seed: int) -> None:
    rng = random.Random(seed)
    max_failures, interval_ms = rng.randint(1, 4), rng.randint(10, 100)
    restart = FailureRateRestart(max_failures=max_failures, interval_ms=interval_ms, delay_ms=7)
    times: list[float] = []
    now_ms = 0.0

    for _ in range(30):
        now_ms += rng.randint(0, 60)
        times.append(now_ms)
        recent = [t for t in times if now_ms - t < interval_ms]
        verdict = restart.on_failure(now_ms, 0)
        assert isinstance(verdict, GiveUp) == (len(recent) > max_failures)
        restart.on_progress()


def test_giving_up_for_the_rate_reports_count_interval_and_setting() -> None:
    restart = FailureRateRestart(max_failures=1, interval_ms=60_000, delay_ms=0)
    restart.on_failure(0, 0)

    assert restart.on_failure(1, 0) == GiveUp(
        "It failed 2 times within 60 s "
        "(restart-strategy.failure-rate.max-failures-per-interval = 1)."
    )


def test_the_backoff_grows_to_its_bound() -> None:
    restart = exponential(initial_ms=100, max_ms=400)

    assert [delay(restart, due) for due in (0, 1_000, 2_000, 3_000)] == [100, 200, 400, 400]


@pytest.mark.parametrize(("draw", "expected_ms"), [(-1, 90), (0, 100), (0.5, 105), (1, 110)])
def test_jitter_adds_or_subtracts_a_share_of_the_backoff(draw: float, expected_ms: float) -> None:
    assert exponential().on_failure(0, draw) == RestartAfter(expected_ms)


def test_jitter_never_exceeds_the_largest_backoff() -> None:
    restart = exponential(initial_ms=100, max_ms=100)

    assert restart.on_failure(0, 1) == RestartAfter(100)


def test_jitter_does_not_compound() -> None:
    restart = exponential()
    restart.on_failure(0, 1)

    assert restart.on_failure(1_000, 0) == RestartAfter(200)


def test_a_failure_before_the_pending_restart_does_not_extend_the_wait() -> None:
    restart = exponential()
    restart.on_failure(0, 0)

    assert restart.on_failure(40, 0) == RestartAfter(60)
    assert restart.on_failure(100, 0) == RestartAfter(200)


@pytest.mark.parametrize(("stable_ms", "expected_ms"), [(9_999, 200), (10_000, 100)])
def test_the_backoff_starts_over_after_a_run_was_stable_long_enough(
    stable_ms: int, expected_ms: int
) -> None:
    restart = exponential(reset_threshold_ms=10_000)
    restart.on_failure(0, 0)
    restart.on_progress()

    assert delay(restart, 100 + stable_ms) == expected_ms


@pytest.mark.parametrize("seed", range(100))
def test_backoff_of_a_cured_incident_delays_no_unrelated_failure(seed: int) -> None:
    """An incident causes several failures; then checkpoints complete; then something else fails."""
    rng = random.Random(seed)
    restart, now_ms = exponential(reset_threshold_ms=1e12), 0.0
    for _ in range(rng.randint(2, 8)):
        now_ms += delay(restart, now_ms, "disk-full") + rng.uniform(0, 500)
    left_ms = restart.next_delay_ms(now_ms)
    completed = rng.randint(0, 2 * CURED_AFTER)
    for _ in range(completed):
        restart.on_progress()
    cause = rng.choice(("disk-full", "slot-lost"))

    waited_ms = delay(restart, now_ms + 100, cause)

    is_fresh = cause == "slot-lost" and completed >= CURED_AFTER
    assert waited_ms == (100 if is_fresh else left_ms)
    restart.validate_state()


@pytest.mark.parametrize("seed", range(100))
def test_a_retry_discards_the_pending_restart_time(seed: int) -> None:
    """Otherwise a failure of the new attempt would count as part of the old one and wait again."""
    rng = random.Random(seed)
    restart, now_ms = exponential(initial_ms=1_000), 0.0
    backoffs = [1_000.0 * 2**n for n in range(6)]

    for backoff_ms in backoffs:
        assert restart.next_delay_ms(now_ms) == backoff_ms
        assert delay(restart, now_ms) == backoff_ms
        retried_ms = now_ms + rng.uniform(0, backoff_ms)
        assert restart.next_delay_ms(retried_ms) == pytest.approx(
            now_ms + backoff_ms - retried_ms, abs=1e-6
        )
        restart.on_retried(retried_ms)
        now_ms = retried_ms + rng.uniform(0, 10)
        restart.validate_state()


def test_a_retry_without_a_pending_restart_changes_nothing() -> None:
    restart = exponential()
    restart.on_retried(5.0)

    assert delay(restart, 10) == 100


def test_each_strategy_says_how_long_a_restart_would_wait_now() -> None:
    fixed = FixedDelayRestart(attempts=1, delay_ms=70)
    rate = FailureRateRestart(max_failures=1, interval_ms=1_000, delay_ms=80)
    once = exponential(attempts=1)

    assert NoRestart().next_delay_ms(0) is None
    assert [each.next_delay_ms(0) for each in (fixed, rate, once)] == [70, 80, 100]
    for each in (fixed, rate, once):
        each.on_failure(0, 0)
    assert [each.next_delay_ms(500) for each in (fixed, rate, once)] == [None, None, None]
    assert rate.next_delay_ms(1_500) == 80


def test_exponential_delay_gives_up_after_its_attempts_and_starts_over_when_stable() -> None:
    restart = exponential(attempts=1, reset_threshold_ms=10_000)
    restart.on_failure(0, 0)

    verdict = restart.on_failure(5_000, 0)

    assert verdict == GiveUp(
        "It failed again after 1 restarts, none of which held for 10 s "
        "(restart-strategy.exponential-delay.attempts-before-reset-backoff = 1)."
    )
    assert delay(restart, 20_000) == 100


@pytest.mark.parametrize(("attempts", "delay_ms"), [(-1, 0), (0, -1)])
def test_negative_bounds_are_a_bug(attempts: int, delay_ms: float) -> None:
    with pytest.raises(InvariantViolated):
        FixedDelayRestart(attempts=attempts, delay_ms=delay_ms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_ms": 0},
        {"initial_ms": 500, "max_ms": 400},
        {"multiplier": 1},
        {"reset_threshold_ms": 0},
        {"jitter_factor": 1.1},
        {"attempts": -1},
    ],
)
def test_a_backoff_that_cannot_grow_is_a_bug(wrong: dict[str, float]) -> None:
    with pytest.raises(InvariantViolated):
        exponential(**wrong)  # type: ignore[arg-type]


def exponential(
    *,
    initial_ms: float = 100,
    max_ms: float = 60_000,
    multiplier: float = 2,
    reset_threshold_ms: float = 3_600_000,
    jitter_factor: float = 0.1,
    attempts: int = 100,
) -> ExponentialDelayRestart:
    return ExponentialDelayRestart(
        initial_ms=initial_ms,
        max_ms=max_ms,
        multiplier=multiplier,
        reset_threshold_ms=reset_threshold_ms,
        jitter_factor=jitter_factor,
        attempts=attempts,
    )


def delay(restart: ExponentialDelayRestart, now_ms: float, cause: str = "") -> float:
    verdict = restart.on_failure(now_ms, 0, cause)
    assert isinstance(verdict, RestartAfter)
    return verdict.delay_ms
