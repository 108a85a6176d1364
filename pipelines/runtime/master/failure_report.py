"""What a subtask's failure is called, and when it is the last one: the sentences people read."""

from pipelines.domain.events import FailureOccurred
from pipelines.domain.quarantine_settings import LIMIT_KEY
from pipelines.protocol.repeated_failures import Deterministic
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


def final_reason(
    event: FailureOccurred, repeated: Deterministic | None, *, is_fatal: bool
) -> str | None:
    """Why no restart can help; None when one may."""
    if is_fatal:
        return event.cause
    if repeated is None:
        return None
    return (
        f"{event.cause.rstrip('.')}. It is the same failure as before, at {repeated.origin}: a"
        " restart would only repeat it. Correct the function or the data, then start from the"
        " newest checkpoint."
    )


def too_many_reason(event: FailureOccurred, limit: int) -> str:
    """Why a run with a quarantine ends all the same."""
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
    records = f" at {error.origin}" if error.origin else ""
    return f"{error.operator}{number} failed{records}: "
