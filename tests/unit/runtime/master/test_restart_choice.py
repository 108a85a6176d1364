"""A run gets the restart strategy that is set, with that strategy's settings."""

import pytest

from pipelines.domain.settings.parsing import parse_settings
from pipelines.protocol.restart import GiveUp, RestartAfter
from pipelines.runtime.master.attempt.failures import restart_backoff

PREFIX = "restart-strategy."


@pytest.mark.parametrize(
    ("settings", "delays_ms"),
    [
        ({"type": "none"}, []),
        ({"type": "fixed-delay", "fixed-delay.attempts": "2", "fixed-delay.delay": "7 ms"}, [7, 7]),
        (
            {
                "type": "failure-rate",
                "failure-rate.max-failures-per-interval": "3",
                "failure-rate.delay": "5 ms",
            },
            [5, 5, 5],
        ),
        (
            {
                "exponential-delay.initial-backoff": "10 ms",
                "exponential-delay.max-backoff": "30 ms",
                "exponential-delay.backoff-multiplier": "2",
                "exponential-delay.jitter-factor": "0",
                "exponential-delay.attempts-before-reset-backoff": "3",
            },
            [10, 20, 30],
        ),
    ],
)
def test_the_configured_strategy_decides_the_number_and_delay_of_restarts(
    settings: dict[str, str], delays_ms: list[float]
) -> None:
    backoff = restart_backoff(parse_settings({PREFIX + k: v for k, v in settings.items()}).restart)

    verdicts = [backoff.on_failure(100.0 * n, 0.5) for n in range(len(delays_ms) + 1)]

    assert verdicts[:-1] == [RestartAfter(delay_ms) for delay_ms in delays_ms]
    assert isinstance(verdicts[-1], GiveUp)


@pytest.mark.parametrize(("draw", "delay_ms"), [(-1.0, 50), (0.0, 100), (1.0, 150)])
def test_the_configured_jitter_factor_spreads_the_delay(draw: float, delay_ms: float) -> None:
    given = {PREFIX + "exponential-delay.jitter-factor": "0.5"}

    backoff = restart_backoff(parse_settings(given).restart)

    assert backoff.on_failure(0, draw) == RestartAfter(delay_ms)


def test_a_run_that_was_stable_for_the_threshold_resets_its_backoff() -> None:
    given = {
        PREFIX + "exponential-delay.reset-backoff-threshold": "1 s",
        PREFIX + "exponential-delay.jitter-factor": "0",
    }
    backoff = restart_backoff(parse_settings(given).restart)
    backoff.on_failure(0, 0)

    assert backoff.on_failure(2_000, 0) == RestartAfter(100)


def test_failures_are_counted_over_the_configured_interval() -> None:
    settings = {"type": "failure-rate", "failure-rate.failure-rate-interval": "1 s"}
    backoff = restart_backoff(parse_settings({PREFIX + k: v for k, v in settings.items()}).restart)

    first, later, soon = (backoff.on_failure(at_ms, 0.0) for at_ms in (0.0, 1_500.0, 1_900.0))

    assert isinstance(first, RestartAfter)
    assert isinstance(later, RestartAfter)
    assert isinstance(soon, GiveUp)
