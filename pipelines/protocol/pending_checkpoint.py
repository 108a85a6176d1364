"""A checkpoint under way: knows which subtasks of the attempt have acknowledged it.

Pure. `coordination` decides what follows from that.

Source: Flink, `PendingCheckpoint`.

Decides how many failed checkpoints in a row a run tolerates.

Pure. A failure counts if its reason does, its checkpoint has not been counted yet, and nothing
newer has completed. A savepoint counts only if a subtask failed it. If the coordinator could not
finish one in time or could not write its manifest, that says nothing about checkpointing.

Source: Flink, `CheckpointFailureManager`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.effects import SubtaskId
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


@dataclass(slots=True)
class PendingCheckpoint:
    """`snapshots` is a list with a place for each subtask: a dictionary that grows with every
    acknowledgement makes each one dearer the more subtasks there are."""

    checkpoint_id: CheckpointId
    request: TriggerRequest
    snapshots: list[SubtaskSnapshot | None]
    missing_count: int

    @classmethod
    def of(
        cls, checkpoint_id: CheckpointId, request: TriggerRequest, subtasks: AttemptSubtasks
    ) -> "PendingCheckpoint":
        return cls(checkpoint_id, request, [None] * len(subtasks), len(subtasks))

    def take(self, place: int, snapshot: SubtaskSnapshot) -> bool:
        """True if it is the first snapshot of its subtask."""
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
        """In order. `subtasks` must be those that it was made for."""
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
        """Counts this failure; True, once: more have now failed in a row than is tolerated."""
        if not reason.counts_against_tolerance or checkpoint_id < self._newest_completed:
            return False
        if is_savepoint and not by_subtask:
            return False
        self._counted.add(checkpoint_id)
        is_exceeded = len(self._counted) > self.tolerable
        if is_exceeded:
            self._counted.clear()
        return is_exceeded
