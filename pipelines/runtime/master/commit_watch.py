"""Has sinks commit what belongs to a completed checkpoint, and watches until all have."""

from pipelines.domain.events import CheckpointCommitted, ZombieRefused
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.checkpoint_effects import SubtaskId
from pipelines.protocol.fencing import Stale
from pipelines.runtime.control import Committed
from pipelines.runtime.master.attempt_host import AttemptHost
from pipelines.runtime.master.checkpoint_surroundings import CheckpointSurroundings


class CommitWatch:
    """Follows one attempt at a time: the restored one commits what an older one had not."""

    def __init__(self, surroundings: CheckpointSurroundings) -> None:
        self._around = surroundings
        self.newest_ms: int | None = None  # wall time of the newest that all sinks have committed
        self._sinks: frozenset[SubtaskId] = frozenset()
        self._waiting: dict[CheckpointId, set[SubtaskId]] = {}

    def on_running(self) -> None:
        shapes, parallelism = self._around.graph.shape(), self._around.spec.parallelism
        sinks = [shape.uid for shape in shapes if shape.is_sink]
        self._sinks = frozenset(SubtaskId(uid, i) for uid in sinks for i in range(parallelism))
        self._waiting = {}

    def on_completed(self, checkpoint_id: CheckpointId, attempt: AttemptHost | None) -> None:
        """Have sinks commit it; None: the attempt ended meanwhile, and the restored one commits."""
        self._waiting[checkpoint_id] = set(self._sinks)
        if attempt is None:
            return
        match self._around.fence.permit_commit(attempt.attempt, checkpoint_id):
            case Stale(stale):
                self._around.emit(ZombieRefused(zombie_attempt=stale, what="a commit"))
            case permit:
                attempt.announce_completed(permit)

    def on_committed(self, message: Committed) -> None:
        """Emits `CheckpointCommitted`, once, when the last sink has committed."""
        waiting = self._waiting.get(message.checkpoint_id)
        if waiting is None:
            return
        waiting.discard(SubtaskId(message.vertex, message.subtask))
        if not waiting:
            del self._waiting[message.checkpoint_id]
            self.newest_ms = self._around.clock.wall_ms()
            self._around.emit(CheckpointCommitted(checkpoint_id=message.checkpoint_id))
