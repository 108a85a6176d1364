"""Words a subtask's failure, and why it is the last one: the sentences that people read.

Builds the restart strategy that the settings name, with the settings that are its own.
"""

from pipelines.domain.elements import Firing
from pipelines.domain.events import FailureOccurred
from pipelines.domain.settings import RestartStrategy, Settings
from pipelines.domain.settings.record_settings import LIMIT_KEY
from pipelines.domain.settings.recovery_settings import MIN_DURATION_KEY, MIN_TRIES_KEY
from pipelines.protocol.repeated_failures import (
    Deterministic,
    OperatorError,
    Place,
    Repeated,
    Returning,
)
from pipelines.protocol.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartBackoff,
)
from pipelines.runtime.control import Failed


def failure_of(message: Failed, slot: int) -> FailureOccurred:
    """Names operator, subtask, split and offsets as far as they are known."""
    error = message.error
    return FailureOccurred(
        cause=f"{_place(message)}{message.cause}",
        vertex=message.vertex,
        subtask=message.subtask,
        slot=slot,
        detail=message.detail,
        operator=error.operator if error else None,
        origin=error.origin if error else None,
    )


def final_reason(event: FailureOccurred, repeated: Repeated, *, is_fatal: bool) -> str | None:
    """Why no restart can help; None when one may."""
    if is_fatal:
        return event.cause
    if not isinstance(repeated, Deterministic):
        return None
    return (
        f"{event.cause.rstrip('.')}. The same failure came {repeated.tries} times within"
        f" {repeated.over_ms / 1000:.1f} s, each time {_where(repeated.place)}: a restart would"
        " only repeat it. Correct the function or the data, then start from the newest checkpoint."
    )


def restart_reason(event: FailureOccurred, repeated: Repeated) -> str:
    """Why the run restarts, and whether the failure is on its way to being the last one."""
    if not isinstance(repeated, Returning):
        return event.cause
    return (
        f"{event.cause.rstrip('.')}. The same failure has come {repeated.tries} times within"
        f" {repeated.over_ms / 1000:.1f} s, each time {_where(repeated.place)}. It may pass, as an"
        " outage of a service that the function calls does; it counts as deterministic after"
        f" {MIN_TRIES_KEY} and {MIN_DURATION_KEY}."
    )


def too_many_reason(event: FailureOccurred, limit: int) -> str:
    """Why a run ends although it has a quarantine."""
    return (
        f"{event.cause.rstrip('.')}. The run has set aside as many records as it may,"
        f" {limit} ({LIMIT_KEY}): look at them in the quarantine, correct the function or the"
        " data, and start from the newest checkpoint, or raise the limit."
    )


def _place(message: Failed) -> str:
    error = message.error
    number = "" if message.subtask is None else f"[{message.subtask}]"
    if error is None:
        return f"{message.vertex}{number}: " if message.vertex else ""
    return f"{error.operator}{number} failed{_places(error)}: "


def _places(error: OperatorError) -> str:
    place = error.firing or error.origin
    places: list[Place] = list(error.candidates) if place is None else [place]
    if not places:
        return ""
    named = "; or ".join(_where(each) for each in places[:_NAMED_MAX])
    others = len(places) - _NAMED_MAX
    return f" {named}" + (f"; or at one of {others} other places" if others > 0 else "")


def _where(place: Place) -> str:
    """Records that only moved event time on are not at fault: they give the time."""
    if isinstance(place, Firing):
        return str(place)
    return f"at the time of {place}" if place.is_moment else f"at {place}"


_NAMED_MAX = 3
"""How many of the possible places of a failure are named."""


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
