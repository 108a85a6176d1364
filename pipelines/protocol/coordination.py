"""The life of a checkpoint between its trigger and its end, as the coordinator sees it.

Pure. A checkpoint collects one acknowledgement of every subtask, is then finalized (the host
publishes the manifest), and only a published manifest makes it complete. Anything else aborts it,
for a named reason. Acknowledgements of unknown, ended or foreign checkpoints change nothing.

Source: Flink, `CheckpointCoordinator`, `PendingCheckpoint`, `CheckpointFailureManager`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.protocol.triggering import TriggerRequest


class SubtaskId(NamedTuple):
    vertex: Uid
    subtask: int


@dataclass(frozen=True, slots=True)
class Inject:
    """Send the barrier into the stream at every source subtask."""

    checkpoint_id: CheckpointId
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class Finalize:
    """All have acknowledged: write the manifest, then report `on_published` or `on_unpublished`."""

    checkpoint_id: CheckpointId
    request: TriggerRequest
    snapshots: tuple[SubtaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """The manifest is durable: record the point and tell every subtask."""

    checkpoint_id: CheckpointId
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Tell every subtask, delete what was written, answer who asked."""

    checkpoint_id: CheckpointId
    request: TriggerRequest
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """More checkpoints in a row failed than are tolerated."""

    message: str


CoordinationEffect = Inject | Finalize | Complete | AbortCheckpoint | FailAttempt


@dataclass(slots=True)
class _Pending:
    checkpoint_id: CheckpointId
    request: TriggerRequest
    snapshots: dict[SubtaskId, SubtaskSnapshot]
    is_finalizing: bool = False


class CheckpointCoordinator:
    """Guarantee: `Complete(n)` only after every subtask of the attempt acknowledged n and its
    manifest was published; every `Inject` is followed by exactly one `Complete` or
    `AbortCheckpoint`; ids are never used twice.

    Needs a host that passes in acknowledgements of the current attempt only (see `fencing`).
    """

    def __init__(self, *, first_id: CheckpointId, tolerable_failures: int) -> None:
        self._next_id = first_id
        self._tolerable_failures = tolerable_failures
        self._failures_in_a_row = 0
        self._subtasks: frozenset[SubtaskId] = frozenset()
        self._pending: _Pending | None = None

    @property
    def pending_id(self) -> CheckpointId | None:
        return self._pending.checkpoint_id if self._pending else None

    def acknowledged_count(self) -> int:
        return len(self._pending.snapshots) if self._pending else 0

    def on_running(self, subtasks: Iterable[SubtaskId]) -> None:
        check(self._pending is None, "an attempt starts without a pending checkpoint")
        self._subtasks = frozenset(subtasks)
        self._failures_in_a_row = 0

    def on_stopped(self, reason: CheckpointFailureReason, why: str) -> list[CoordinationEffect]:
        """The attempt is over; a manifest that is being written may still become durable, so the
        host passes the outcome in first."""
        self._subtasks = frozenset()
        return self._abort(reason, why, counts=False)

    def on_trigger(self, request: TriggerRequest) -> list[CoordinationEffect]:
        check(bool(self._subtasks), "a checkpoint is triggered while all subtasks run")
        check(self._pending is None, "one checkpoint at a time")
        checkpoint_id = self._next_id
        self._next_id = CheckpointId(checkpoint_id + 1)
        self._pending = _Pending(checkpoint_id, request, {})
        return [Inject(checkpoint_id, request)]

    def on_acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot
    ) -> list[CoordinationEffect]:
        """Late, repeated and unknown acknowledgements change nothing."""
        pending = self._pending
        subtask = SubtaskId(snapshot.vertex, snapshot.subtask)
        if pending is None or not self._is_collecting(checkpoint_id):
            return []
        if subtask not in self._subtasks or subtask in pending.snapshots:
            return []
        pending.snapshots[subtask] = snapshot
        if pending.snapshots.keys() != self._subtasks:
            return []
        pending.is_finalizing = True
        ordered = tuple(pending.snapshots[key] for key in sorted(pending.snapshots))
        return [Finalize(checkpoint_id, pending.request, ordered)]

    def on_declined(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, why: str
    ) -> list[CoordinationEffect]:
        """Too late once the manifest is being written: it may already be durable."""
        return self._abort(reason, why) if self._is_collecting(checkpoint_id) else []

    def on_expired(self, checkpoint_id: CheckpointId) -> list[CoordinationEffect]:
        """Too late once the manifest is being written, likewise."""
        pending = self._pending
        if pending is None or not self._is_collecting(checkpoint_id):
            return []
        missing = sorted(self._subtasks - pending.snapshots.keys())
        names = ", ".join(f"{vertex}[{subtask}]" for vertex, subtask in missing)
        return self._abort(CheckpointFailureReason.CHECKPOINT_EXPIRED, f"still missing: {names}")

    def on_published(self, checkpoint_id: CheckpointId) -> list[CoordinationEffect]:
        pending = self._finalizing(checkpoint_id)
        self._pending = None
        self._failures_in_a_row = 0
        return [Complete(checkpoint_id, pending.request)]

    def on_unpublished(self, checkpoint_id: CheckpointId, why: str) -> list[CoordinationEffect]:
        self._finalizing(checkpoint_id)
        return self._abort(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, why)

    def _is_collecting(self, checkpoint_id: CheckpointId) -> bool:
        pending = self._pending
        if pending is None or pending.checkpoint_id != checkpoint_id:
            return False
        return not pending.is_finalizing

    def _finalizing(self, checkpoint_id: CheckpointId) -> _Pending:
        pending = self._pending
        if pending is None or not pending.is_finalizing or pending.checkpoint_id != checkpoint_id:
            raise InvariantViolated(f"only a finalizing checkpoint is published: {checkpoint_id}")
        return pending

    def _abort(
        self, reason: CheckpointFailureReason, why: str, *, counts: bool = True
    ) -> list[CoordinationEffect]:
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        effects: list[CoordinationEffect] = [
            AbortCheckpoint(pending.checkpoint_id, pending.request, reason, why)
        ]
        if counts and reason.counts_against_tolerance:
            effects += self._count_failure()
        return effects

    def _count_failure(self) -> list[CoordinationEffect]:
        self._failures_in_a_row += 1
        if self._failures_in_a_row <= self._tolerable_failures:
            return []
        return [FailAttempt("Exceeded checkpoint tolerable failure threshold.")]
