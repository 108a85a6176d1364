"""Decides the life of checkpoints between their trigger and their end: the coordinator.

Pure. A checkpoint collects one acknowledgement from every subtask and is then finalized: the host
publishes the manifest, and only a published manifest makes it complete. Anything else aborts it,
for a named reason. Several may be under way. A completed one subsumes those before it, except
savepoints, whose requesters wait for them. Manifests are written one after the other, so the
durable ones and those reported as complete never differ by more than one. `triggering` decides how
many may be under way and when the next one starts.

A run tolerates a number of failed checkpoints in a row. A failure counts if its reason does, its
checkpoint has not been counted yet, and nothing newer has completed. A savepoint counts only if a
subtask failed it. If the coordinator could not finish one in time or could not write its manifest,
that says nothing about checkpointing.

Source: Flink, `CheckpointCoordinator`, `PendingCheckpoint`, `CheckpointFailureManager`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.effects import (
    AbortCheckpoint,
    Complete,
    CoordinationEffect,
    DiscardLate,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.triggering import TriggerRequest


class AttemptSubtasks:
    """The subtasks of an attempt in the order in which every manifest lists them."""

    def __init__(self, subtasks: Iterable[SubtaskId] = ()) -> None:
        self.ordered = sorted(set(subtasks))
        self._places: dict[Uid, dict[int, int]] = {}
        for place, (vertex, subtask) in enumerate(self.ordered):
            self._places.setdefault(vertex, {})[subtask] = place

    def __len__(self) -> int:
        return len(self.ordered)

    def place_of(self, vertex: Uid, subtask: int) -> int | None:
        return self._places.get(vertex, {}).get(subtask)


class CheckpointPhase(Enum):
    """How far a triggered checkpoint has got."""

    COLLECTING = auto()  # acknowledgements; once it has all, it may wait for its turn
    WRITING = auto()  # its manifest
    COMPLETED = auto()
    ABORTED = auto()


_P = CheckpointPhase
NEXT_PHASES: dict[CheckpointPhase, frozenset[CheckpointPhase]] = {
    _P.COLLECTING: frozenset({_P.WRITING, _P.ABORTED}),
    _P.WRITING: frozenset({_P.COMPLETED, _P.ABORTED}),
    _P.COMPLETED: frozenset(),
    _P.ABORTED: frozenset(),
}


@dataclass(slots=True)
class Checkpoint:
    """Everything the coordinator knows about one checkpoint, from its trigger on.

    Only the coordinator changes it; the host may read it. `snapshots` is a list with a place for
    each subtask: with a dictionary, each acknowledgement costs more the more subtasks there are.
    """

    checkpoint_id: CheckpointId
    request: TriggerRequest
    snapshots: list[SubtaskSnapshot | None]
    missing_count: int
    phase: CheckpointPhase = CheckpointPhase.COLLECTING
    failure: CheckpointFailureReason | None = None  # why it was aborted

    @classmethod
    def of(
        cls, checkpoint_id: CheckpointId, request: TriggerRequest, subtasks: AttemptSubtasks
    ) -> "Checkpoint":
        return cls(checkpoint_id, request, [None] * len(subtasks), len(subtasks))

    def move_to(self, phase: CheckpointPhase) -> None:
        """Raises InvariantViolated for a move that is not in the table.

        Drops the snapshots of a checkpoint that is over, because nothing reads them.
        """
        may_follow = phase in NEXT_PHASES[self.phase]
        check(may_follow, "a checkpoint moves on", of=self.checkpoint_id, now=self.phase, to=phase)
        self.phase = phase
        if not NEXT_PHASES[phase]:
            self.snapshots = []

    def take(self, place: int, snapshot: SubtaskSnapshot) -> bool:
        """Returns True if it is the first snapshot of its subtask."""
        if self.snapshots[place] is not None:
            return False
        self.snapshots[place] = snapshot
        self.missing_count -= 1
        return True

    @property
    def is_ready(self) -> bool:
        return self.missing_count == 0

    @property
    def can_be_subsumed(self) -> bool:
        is_savepoint = self.request.kind is CheckpointKind.SAVEPOINT
        return not is_savepoint and not self.request.stops_run

    def missing(self, subtasks: AttemptSubtasks) -> list[SubtaskId]:
        """Returns them in order. `subtasks` must be those that the checkpoint was made for."""
        answers = zip(subtasks.ordered, self.snapshots, strict=True)
        return [subtask for subtask, snapshot in answers if snapshot is None]


class FailureTolerance:
    """The count outlives attempts: only a completed checkpoint, or giving up, resets it."""

    def __init__(self, tolerable: int) -> None:
        self.tolerable = tolerable
        self._counted: set[CheckpointId] = set()
        self._newest_completed = NO_CHECKPOINT

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        self._counted.clear()
        self._newest_completed = max(self._newest_completed, checkpoint_id)

    def is_exceeded_by(
        self,
        checkpoint_id: CheckpointId,
        reason: CheckpointFailureReason,
        *,
        is_savepoint: bool,
        by_subtask: bool,
    ) -> bool:
        """Counts this failure. Returns True, once, if more failed in a row than is tolerated."""
        if not reason.counts_against_tolerance or checkpoint_id < self._newest_completed:
            return False
        if is_savepoint and not by_subtask:
            return False
        self._counted.add(checkpoint_id)
        is_exceeded = len(self._counted) > self.tolerable
        if is_exceeded:
            self._counted.clear()
        return is_exceeded

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        is_newer = all(n >= self._newest_completed for n in self._counted)
        check(is_newer, "a completed checkpoint forgives the failures before it")


_UNDER_WAY = (CheckpointPhase.COLLECTING, CheckpointPhase.WRITING)

ABANDONED_REMEMBERED_MAX = 1_000
"""How many aborted checkpoints the coordinator remembers, to recognise their late files."""


class CheckpointCoordinator:
    """Guarantee: `Complete(n)` only after every subtask of the attempt acknowledged n and its
    manifest was published; every `Inject` is followed by exactly one `Complete` or
    `AbortCheckpoint`; ids are never used twice; at most one `Finalize` awaits its outcome.

    Each checkpoint is one object, and the fields below index these objects. Needs a host that
    passes in only acknowledgements of the current attempt (see `commit`).
    """

    def __init__(self, *, first_id: CheckpointId, tolerable_failures: int) -> None:
        self._next_id = first_id
        self._tolerance = FailureTolerance(tolerable_failures)
        self._subtasks = AttemptSubtasks()
        self._pending: dict[CheckpointId, Checkpoint] = {}  # in order of their ids
        self._writing: Checkpoint | None = None  # the one whose manifest is being written
        self._abandoned: dict[CheckpointId, Checkpoint] = {}  # by this attempt, oldest first

    @property
    def next_id(self) -> CheckpointId:
        """The id of the next checkpoint, above every id that was used."""
        return self._next_id

    def pending(self, checkpoint_id: CheckpointId) -> Checkpoint:
        """Raises InvariantViolated unless it was triggered and is not over."""
        check(checkpoint_id in self._pending, "it is pending", checkpoint_id=checkpoint_id)
        return self._pending[checkpoint_id]

    def tolerate(self, failures: int) -> None:
        """Tolerates this many failures in a row, from the next failure on."""
        self._tolerance.tolerable = failures

    def on_running(self, subtasks: Iterable[SubtaskId]) -> None:
        check(not self._pending, "an attempt starts without a pending checkpoint")
        self._subtasks = AttemptSubtasks(subtasks)
        self._abandoned = {}

    def on_stopped(
        self,
        reason: CheckpointFailureReason,
        why: str,
        failed: Collection[SubtaskId] = (),
    ) -> list[CoordinationEffect]:
        """The attempt is over; `failed` are the subtasks whose loss ended it, if any.

        Checkpoints that still needed their acknowledgement end as TASK_FAILURE, the others for
        `reason`. A manifest that is being written may still become durable, so the host passes its
        outcome in first.
        """
        check(self._writing is None, "the outcome of a manifest is passed in first")
        lost, aborted = frozenset(failed), []
        for pending in list(self._pending.values()):
            is_unhurt = lost.isdisjoint(pending.missing(self._subtasks))
            by_name = reason if is_unhurt else CheckpointFailureReason.TASK_FAILURE
            aborted.append(self._abort(pending, by_name, why))
        self._subtasks = AttemptSubtasks()
        return [*aborted]

    def on_trigger(self, request: TriggerRequest) -> list[CoordinationEffect]:
        check(len(self._subtasks) > 0, "a checkpoint is triggered while all subtasks run")
        checkpoint_id = self._next_id
        self._next_id = CheckpointId(checkpoint_id + 1)
        self._pending[checkpoint_id] = Checkpoint.of(checkpoint_id, request, self._subtasks)
        return [Inject(checkpoint_id, request)]

    def on_untriggered(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, why: str
    ) -> list[CoordinationEffect]:
        """The host could not prepare its location; no subtask has heard of it."""
        pending = self._pending.get(checkpoint_id)
        return [] if pending is None else self._fail(pending, reason, why)

    def on_acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot
    ) -> list[CoordinationEffect]:
        """Ignores repeated and unknown acknowledgements; discards the files of late ones."""
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return self._discard_late(checkpoint_id)
        place = self._subtasks.place_of(snapshot.vertex, snapshot.subtask)
        if place is None or not pending.take(place, snapshot):
            return []
        return self._finalize_next() if pending.is_ready else []

    def on_declined(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, why: str
    ) -> list[CoordinationEffect]:
        """Has no effect once all have acknowledged, because nothing is missing any more.

        A decline that made other subtasks decline may arrive after theirs; it counts all the same.
        """
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            late = self._discard_late(checkpoint_id)
            return [*late, *self._count_behind_others(checkpoint_id, reason, why)]
        if pending.is_ready:
            return []
        return self._fail(pending, reason, why, by_subtask=True)

    def on_expired(self, checkpoint_id: CheckpointId) -> list[CoordinationEffect]:
        """Has no effect while the manifest is being written, which may already be durable."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.phase is CheckpointPhase.WRITING:
            return []
        missing = pending.missing(self._subtasks)
        names = ", ".join(f"{vertex}[{subtask}]" for vertex, subtask in missing)
        why = f"still missing: {names}" if missing else "an older manifest is being written"
        return self._fail(pending, CheckpointFailureReason.CHECKPOINT_EXPIRED, why)

    def on_published(self, checkpoint_id: CheckpointId) -> list[CoordinationEffect]:
        """Completes it, subsumes older ones, and starts the next manifest."""
        published = self._take_written(checkpoint_id)
        published.move_to(CheckpointPhase.COMPLETED)
        del self._pending[checkpoint_id]
        self._tolerance.on_completed(checkpoint_id)
        older = [p for p in self._pending.values() if p.checkpoint_id < checkpoint_id]
        reason, why = CheckpointFailureReason.CHECKPOINT_SUBSUMED, f"by checkpoint {checkpoint_id}"
        return [
            Complete(checkpoint_id, published.request),
            *(self._abort(pending, reason, why) for pending in older if pending.can_be_subsumed),
            *self._finalize_next(),
        ]

    def on_unpublished(self, checkpoint_id: CheckpointId, why: str) -> list[CoordinationEffect]:
        """Its manifest could not be written."""
        pending = self._take_written(checkpoint_id)
        reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        aborted, *attempt_failed = self._fail(pending, reason, why)
        return [aborted, *self._finalize_next(), *attempt_failed]

    def on_damaged(self, checkpoint_id: CheckpointId, why: str) -> list[CoordinationEffect]:
        """Its manifest was not written, because it refers to a damaged file.

        No subtask has failed, and the next checkpoint writes that file again, so this failure is
        not counted.
        """
        pending = self._take_written(checkpoint_id)
        reason = CheckpointFailureReason.DAMAGED_FILE
        return [self._abort(pending, reason, why), *self._finalize_next()]

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        ids = list(self._pending)
        check(ids == sorted(ids), "pending checkpoints are in the order of their ids", ids=ids)
        check(all(n < self._next_id for n in ids), "the next id is above every used one", ids=ids)
        check(self._pending.keys().isdisjoint(self._abandoned), "what was aborted is not pending")
        check(len(self._abandoned) <= ABANDONED_REMEMBERED_MAX, "few aborted ones are remembered")
        for checkpoint_id, pending in self._pending.items():
            missing = sum(snapshot is None for snapshot in pending.snapshots)
            check(missing == pending.missing_count, "missing ones are counted", id=checkpoint_id)
            check(pending.phase in _UNDER_WAY, "what is pending is not over", id=checkpoint_id)
        are_aborted = all(each.phase is _P.ABORTED for each in self._abandoned.values())
        check(are_aborted, "what was abandoned is aborted")
        writing = self._writing
        written = [each for each in self._pending.values() if each.phase is _P.WRITING]
        check(written == ([] if writing is None else [writing]), "one manifest is being written")
        is_due = writing is None or writing.is_ready
        check(is_due, "a manifest is written for what all acknowledged")
        self._tolerance.validate_state()
        has_ready = any(pending.is_ready for pending in self._pending.values())
        check(writing is not None or not has_ready, "what all acknowledged is being written")

    def _finalize_next(self) -> list[CoordinationEffect]:
        """Finalizes the oldest that all have acknowledged, unless a manifest is being written."""
        if self._writing is not None:
            return []
        ready = next((p for p in self._pending.values() if p.is_ready), None)
        if ready is None:
            return []
        ready.move_to(CheckpointPhase.WRITING)
        self._writing = ready
        snapshots = tuple(s for s in ready.snapshots if s is not None)
        return [Finalize(ready.checkpoint_id, ready.request, snapshots)]

    def _take_written(self, checkpoint_id: CheckpointId) -> Checkpoint:
        writing = self._writing
        if writing is None or writing.checkpoint_id != checkpoint_id:
            raise InvariantViolated(f"only a finalizing checkpoint is published: {checkpoint_id}")
        self._writing = None
        return writing

    def _discard_late(self, checkpoint_id: CheckpointId) -> list[CoordinationEffect]:
        aborted = self._abandoned.get(checkpoint_id)
        return [] if aborted is None else [DiscardLate(checkpoint_id, aborted.request)]

    def _count_behind_others(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, why: str
    ) -> list[CoordinationEffect]:
        aborted = self._abandoned.get(checkpoint_id)
        failure = None if aborted is None else aborted.failure
        if aborted is None or failure is None or not failure.follows_another_decline:
            return []
        aborted.failure = reason  # counted once
        return self._counted(checkpoint_id, aborted.request, reason, why, by_subtask=True)

    def _fail(
        self,
        pending: Checkpoint,
        reason: CheckpointFailureReason,
        why: str,
        *,
        by_subtask: bool = False,
    ) -> list[CoordinationEffect]:
        aborted = self._abort(pending, reason, why)
        checkpoint_id, request = pending.checkpoint_id, pending.request
        return [aborted, *self._counted(checkpoint_id, request, reason, why, by_subtask=by_subtask)]

    def _counted(
        self,
        checkpoint_id: CheckpointId,
        request: TriggerRequest,
        reason: CheckpointFailureReason,
        why: str,
        *,
        by_subtask: bool,
    ) -> list[CoordinationEffect]:
        is_savepoint = request.kind is CheckpointKind.SAVEPOINT
        if not self._tolerance.is_exceeded_by(
            checkpoint_id, reason, is_savepoint=is_savepoint, by_subtask=by_subtask
        ):
            return []
        message = "More checkpoints failed in a row than the run tolerates."
        return [FailAttempt(f"{message} The latest one failed: {reason} {why}")]

    def _abort(
        self, pending: Checkpoint, reason: CheckpointFailureReason, why: str
    ) -> AbortCheckpoint:
        checkpoint_id = pending.checkpoint_id
        del self._pending[checkpoint_id]
        pending.move_to(CheckpointPhase.ABORTED)
        pending.failure = reason
        self._abandoned[checkpoint_id] = pending
        if len(self._abandoned) > ABANDONED_REMEMBERED_MAX:
            del self._abandoned[next(iter(self._abandoned))]
        return AbortCheckpoint(checkpoint_id, pending.request, reason, why)
