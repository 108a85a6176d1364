"""Builds the restart strategy that the settings name, with the settings that are its own."""

from pipelines.domain.settings import RestartStrategy, Settings
from pipelines.protocol.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartBackoff,
)


def restart_backoff(settings: Settings) -> RestartBackoff:
    match settings.restart_strategy:
        case RestartStrategy.NONE:
            return NoRestart()
        case RestartStrategy.FIXED_DELAY:
            return FixedDelayRestart(
                attempts=settings.fixed_delay_attempts, delay_ms=settings.fixed_delay_ms
            )
        case RestartStrategy.FAILURE_RATE:
            return FailureRateRestart(
                max_failures=settings.failure_rate_max_failures,
                interval_ms=settings.failure_rate_interval_ms,
                delay_ms=settings.failure_rate_delay_ms,
            )
        case RestartStrategy.EXPONENTIAL_DELAY:
            return ExponentialDelayRestart(
                initial_ms=settings.initial_backoff_ms,
                max_ms=settings.max_backoff_ms,
                multiplier=settings.backoff_multiplier,
                reset_threshold_ms=settings.reset_backoff_threshold_ms,
                jitter_factor=settings.backoff_jitter_factor,
                attempts=settings.attempts_before_reset_backoff,
            )
