"""Decides from the facts if an upgrade stays, takes its next step, or ends. Pure.

The order of the steps, with the way back:

    CHECKING, STOPPING, STARTING, WATCHING, ended: succeeded
                        |         |
                        |         CANCELING
                        |         |
                        RESTORING, ended: failed

Guarantee: once the savepoint is there, an upgrade ends only when one of the two codes has continued
from it, when a person has cancelled a run, or when the code before could not be started in time.
"""

from dataclasses import dataclass

from ftdash.jobs.models import RequestPhase, UpgradeStep
from pipelines.domain.status import JobStatus


@dataclass(frozen=True, slots=True)
class Stay:
    pass


@dataclass(frozen=True, slots=True)
class Go:
    """`text` says what became of the step that is over."""

    step: UpgradeStep
    text: str
    why_back: str = ""


@dataclass(frozen=True, slots=True)
class End:
    phase: RequestPhase
    text: str
    trace: str = ""  # of the author's code


Decision = Stay | Go | End


@dataclass(frozen=True, slots=True)
class Checked:
    """An empty `refusal` means that the new code fits; `text` says what it changes."""

    text: str
    refusal: str = ""
    trace: str = ""  # of the author's code, if that is why


@dataclass(frozen=True, slots=True)
class SeenRequest:
    is_open: bool
    has_succeeded: bool
    message: str


@dataclass(frozen=True, slots=True)
class SeenRun:
    """`checkpoints` counts those that the running attempt has completed; 0 while none runs."""

    name: str
    status: JobStatus
    reason: str
    checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    step: UpgradeStep
    old: SeenRun
    checkpoints: int  # to watch
    is_late: bool  # the step has taken longer than it may
    limit: str  # how long that is
    refusal: str = ""  # why the step's request could not be made now
    checked: Checked | None = None
    has_check_died: bool = False  # as often as it was tried
    stop: SeenRequest | None = None  # the newest
    may_stop_again: bool = False
    savepoint: str | None = None
    new: SeenRun | None = None
    why_back: str = ""
    back: SeenRequest | None = None


STAY = Stay()


def decide(seen: Seen) -> Decision:
    match seen.step:
        case UpgradeStep.CHECKING:
            return _after_check(seen)
        case UpgradeStep.STOPPING:
            return _after_stop(seen)
        case UpgradeStep.STARTING:
            return _after_start(seen)
        case UpgradeStep.WATCHING:
            return _watched(seen)
        case UpgradeStep.CANCELING:
            return _canceled(seen)
        case UpgradeStep.RESTORING:
            return _restored(seen)
        case UpgradeStep.ENDED:
            return STAY


def _after_check(seen: Seen) -> Decision:
    if seen.checked is not None and not seen.checked.refusal:
        return Go(UpgradeStep.STOPPING, seen.checked.text)
    if seen.checked is not None:
        text = f"The new code does not fit, and nothing was changed: {seen.checked.refusal}"
        return End(RequestPhase.REJECTED, text, seen.checked.trace)
    if seen.has_check_died:
        text = (
            "The process that checks the new code ended without a result each time it was started,"
            f" and nothing was changed; see upgrade.log in the directory of {seen.old.name}."
        )
        return End(RequestPhase.REJECTED, text)
    return STAY


def _after_stop(seen: Seen) -> Decision:
    goes_on = f"{seen.old.name} continues with the previous code."
    if seen.savepoint is not None:
        if not seen.old.status.is_terminal:
            return STAY
        return Go(UpgradeStep.STARTING, f"Stopped with the savepoint {seen.savepoint}.")
    if seen.old.status.is_terminal:
        text = f"{seen.old.name} ended before it was stopped: {seen.old.reason}"
        return End(RequestPhase.FAILED, text)
    if seen.stop is not None and not seen.stop.is_open and not seen.may_stop_again:
        text = f"No savepoint could be taken, so {goes_on} {seen.stop.message}"
        return End(RequestPhase.FAILED, text)
    if seen.stop is None and seen.is_late:
        text = f"It could not be stopped within {seen.limit}, so {goes_on} {seen.refusal}"
        return End(RequestPhase.FAILED, text)
    return STAY


def _after_start(seen: Seen) -> Decision:
    if seen.new is not None:
        return Go(UpgradeStep.WATCHING, f"{seen.new.name} starts from the savepoint.")
    if seen.refusal:
        why = f"The new code could not be started: {seen.refusal}"
        return Go(UpgradeStep.RESTORING, why, why_back=why)
    return STAY


def _watched(seen: Seen) -> Decision:
    new = seen.new
    if new is None:
        return STAY
    if new.status is JobStatus.FINISHED:
        return End(RequestPhase.SUCCEEDED, f"{new.name} ran to its end with the new code.")
    if new.status is JobStatus.CANCELED:
        text = f"{new.name} was cancelled while it was watched, so nothing runs now. {new.reason}"
        return End(RequestPhase.FAILED, text)
    if new.status is JobStatus.FAILED:
        why = f"{new.name} failed: {new.reason}"
        return Go(UpgradeStep.RESTORING, why, why_back=why)
    if new.checkpoints >= seen.checkpoints:
        text = f"{new.name} runs the new code and has completed {_checkpoints(new.checkpoints)}."
        return End(RequestPhase.SUCCEEDED, text)
    if seen.is_late:
        why = (
            f"{new.name} completed {new.checkpoints} of {_checkpoints(seen.checkpoints)} in one"
            f" attempt within {seen.limit}. {new.reason}".strip()
        )
        return Go(UpgradeStep.CANCELING, why, why_back=why)
    return STAY


def _canceled(seen: Seen) -> Decision:
    new = seen.new
    if new is None or not new.status.is_terminal:
        return STAY
    if new.status is JobStatus.FINISHED:
        return End(RequestPhase.SUCCEEDED, f"{new.name} ran to its end with the new code.")
    return Go(UpgradeStep.RESTORING, f"{new.name} has ended as {new.status}.")


def _restored(seen: Seen) -> Decision:
    why = seen.why_back
    if seen.back is not None:
        if seen.back.is_open:
            return STAY
        if seen.back.has_succeeded:
            text = f"It went back: the previous code continues from {seen.savepoint}. {why}"
        else:
            text = (
                f"The previous code was started again from {seen.savepoint}, but is not running"
                f" yet: {seen.back.message} {why}"
            )
        return End(RequestPhase.FAILED, text)
    if seen.refusal and seen.is_late:
        text = (
            f"Nothing runs: the previous code could not be started again within {seen.limit}."
            f" {seen.refusal} Restore {seen.savepoint} when that is repaired. {why}"
        )
        return End(RequestPhase.FAILED, text)
    return STAY


def _checkpoints(count: int) -> str:
    return f"{count} checkpoint" if count == 1 else f"{count} checkpoints"
