"""Knows which source subtasks of an attempt still have input; reports when some, or all, end."""

from pipelines.domain.ids import Uid
from pipelines.runtime.master.checkpoint_host import CheckpointHost
from pipelines.runtime.master.run_parts import RunParts


class SourcesLeft:
    def __init__(self, parts: RunParts, checkpoints: CheckpointHost) -> None:
        parallelism = parts.spec.parallelism
        self._all = frozenset(
            (uid, i) for uid in parts.pipeline.sources for i in range(parallelism)
        )
        self._checkpoints = checkpoints
        self._left: set[tuple[Uid, int]] = set()

    def on_begun(self) -> None:
        """An attempt has begun."""
        self._left = set(self._all)

    def on_ended(self, vertex: Uid, subtask: int) -> None:
        self._left.discard((vertex, subtask))

    def tell(self) -> None:
        """Call once all slots run: a source with nothing to read ends before the last slot runs."""
        if len(self._left) == len(self._all):
            return
        self._checkpoints.triggers.on_source_finished()
        if not self._left:
            self._checkpoints.triggers.on_sources_ended()
