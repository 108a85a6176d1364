"""Follows completed checkpoints until every sink has committed what belongs to them."""

from collections.abc import Iterable

from pipelines.domain.ids import CheckpointId
from pipelines.protocol.checkpoint_effects import SubtaskId


class CommitWatch:
    """Of one attempt at a time: what an older one still had to commit, the restored one does."""

    def __init__(self) -> None:
        self._sinks: frozenset[SubtaskId] = frozenset()
        self._waiting: dict[CheckpointId, set[SubtaskId]] = {}

    def on_running(self, sinks: Iterable[SubtaskId]) -> None:
        self._sinks = frozenset(sinks)
        self._waiting = {}

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        self._waiting[checkpoint_id] = set(self._sinks)

    def on_committed(self, checkpoint_id: CheckpointId, sink: SubtaskId) -> bool:
        """True, once: it was the last one."""
        waiting = self._waiting.get(checkpoint_id)
        if waiting is None:
            return False
        waiting.discard(sink)
        if waiting:
            return False
        del self._waiting[checkpoint_id]
        return True
