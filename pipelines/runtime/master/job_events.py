"""The events of the job master's loop: one queue, one thread, one thing at a time.

Long work runs outside the job master's thread, and its failures come back as events. The work
handles outages (of the storage, say) itself. Any other failure is a bug. Without an event, it would
end in a future that is never read: a manifest never comes, a storage is never swept again.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import DriverCommand
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.protocol.retention import RetainedPoint
from pipelines.runtime.control import (
    Acknowledged,
    Beat,
    Committed,
    ControlLink,
    Declined,
    Ended,
    FromSlot,
    Hello,
    Logged,
    Restoring,
    Sampled,
    SourcesEnded,
)
from pipelines.storage.store import Damage, Publication


@dataclass(frozen=True, slots=True)
class SlotArrived:
    attempt: Attempt
    hello: Hello
    link: ControlLink[FromSlot]


@dataclass(frozen=True, slots=True)
class SlotSpoke:
    attempt: Attempt
    slot: int
    message: FromSlot


@dataclass(frozen=True, slots=True)
class SlotGone:
    """The control connection of a slot ended."""

    attempt: Attempt
    slot: int
    problem: str


@dataclass(frozen=True, slots=True)
class StrangerRefused:
    """A peer connected without the token, or with an older attempt's."""

    attempt: Attempt
    what: str


@dataclass(frozen=True, slots=True)
class StageEnded:
    """The Spark stage that hosts an attempt is over; `problem` is empty when it succeeded."""

    attempt: Attempt
    problem: str


@dataclass(frozen=True, slots=True)
class LocationPrepared:
    """The location of a checkpoint is ready, or cannot be made ready."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason | None = None  # None if it is ready
    why: str = ""


@dataclass(frozen=True, slots=True)
class FilesMissing:
    """A manifest was not written: it refers to files of earlier checkpoints that are gone."""

    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    checkpoint_id: CheckpointId
    outcome: Publication | FilesMissing | str  # a string says why it could not be written


@dataclass(frozen=True, slots=True)
class TooManyFailedCheckpoints:
    """More checkpoints of the attempt have failed than are tolerated."""

    attempt: Attempt
    why: str


@dataclass(frozen=True, slots=True)
class PointsLookedAt:
    """The retained points were read again, newest first.

    The first damage of a damaged point says why it is damaged. `point_count` includes the points
    for which the storage did not answer. `known` are the damaged files remembered before.
    """

    whole: tuple[RetainedPoint, ...]
    damaged: tuple[tuple[RetainedPoint, tuple[Damage, ...]], ...]
    duration_ms: float
    point_count: int
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Work outside the master's thread raised an unexpected error, so the driver ends."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CommandArrived:
    command: DriverCommand


JobEvent = (
    SlotArrived
    | SlotSpoke
    | SlotGone
    | StrangerRefused
    | StageEnded
    | LocationPrepared
    | ManifestWritten
    | TooManyFailedCheckpoints
    | PointsLookedAt
    | WorkFailed
    | CommandArrived
)


def claim_of(message: FromSlot) -> str | None:
    match message:
        case Acknowledged(checkpoint_id=checkpoint_id, snapshot=snapshot):
            who = f"{snapshot.vertex}[{snapshot.subtask}]"
            return f"an acknowledgement of checkpoint {checkpoint_id} by {who}"
        case Declined(checkpoint_id=checkpoint_id, vertex=vertex, subtask=subtask):
            return f"a decline of checkpoint {checkpoint_id} by {vertex}[{subtask}]"
        case Committed(checkpoint_id=checkpoint_id, vertex=vertex, subtask=subtask):
            return f"a commit of checkpoint {checkpoint_id} by {vertex}[{subtask}]"
        case SourcesEnded(vertex=vertex, subtask=subtask):
            return f"the end of the source {vertex}[{subtask}]"
        case Ended():
            return "the end of all its subtasks"
        case _:
            return None


def text_of(event: JobEvent) -> str | None:
    """Describes an event for a report of the last events. Returns None for events that come too
    often to be of use there."""
    match event:
        case SlotSpoke(message=Beat() | Sampled() | Restoring() | Logged()):
            return None
        case SlotSpoke(attempt, slot, message):
            what = claim_of(message) or type(message).__name__
            return f"{what}, from slot {slot} of attempt {attempt}"
        case SlotArrived(attempt, hello):
            return f"slot {hello.slot} of attempt {attempt} has connected"
        case SlotGone(attempt, slot):
            return f"slot {slot} of attempt {attempt} is gone"
        case StrangerRefused(attempt):
            return f"a stranger that claimed attempt {attempt} was refused"
        case StageEnded(attempt):
            return f"the stage of attempt {attempt} has ended"
        case LocationPrepared(checkpoint_id, reason):
            return f"the location of checkpoint {checkpoint_id} is {reason or 'ready'}"
        case ManifestWritten(checkpoint_id, outcome):
            how = outcome.name if isinstance(outcome, Publication) else "REFUSED"
            return f"the publication of checkpoint {checkpoint_id} ended as {how}"
        case TooManyFailedCheckpoints(attempt):
            return f"too many checkpoints of attempt {attempt} have failed"
        case PointsLookedAt(point_count=count):
            return f"{count} points were read again"
        case WorkFailed(error):
            return f"work on another thread has raised {type(error).__name__}"
        case CommandArrived(command):
            return f"the command {type(command).__name__} {command.request_id}"


P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class WatchedExecutor(Executor):
    """Guarantee: every exception of the work is posted as `WorkFailed`, which ends the driver."""

    def __init__(self, executor: Executor, post: Callable[[JobEvent], None]) -> None:
        self._executor = executor
        self._post = post

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        future = self._executor.submit(work, *args, **options)
        future.add_done_callback(self._on_done)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _on_done(self, future: Future[T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            log.error("Work beside the job master's thread failed.", exc_info=error)
            self._post(WorkFailed(error))
