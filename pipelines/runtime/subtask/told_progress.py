"""Reports to the outside world how far completed checkpoints have come, for sources that do that.

Owns the positions between a cut and the end of its checkpoint. A report that fails changes nothing
here. Source: Flink, `KafkaSourceReader.notifyCheckpointComplete`.
"""

from pipelines.connectors.source import TellsProgress
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json

COMMITS_SUCCEEDED, COMMITS_FAILED = "commits_succeeded", "commits_failed"
"""Counters of the source, as Flink names them."""


class ToldProgress:
    """Guarantee: reports only positions of a completed checkpoint, never of an older one."""

    def __init__(self, reader: TellsProgress) -> None:
        self._reader = reader
        self._cuts: dict[CheckpointId, tuple[SplitProgress, ...]] = {}

    def on_cut(self, checkpoint_id: CheckpointId, positions: Json) -> None:
        self._cuts[checkpoint_id] = NamedPositions.from_json(positions).splits

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        splits = self._cuts.get(checkpoint_id)
        self._forget(checkpoint_id)
        if splits:
            self._reader.tell(splits)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._cuts.pop(checkpoint_id, None)

    def take_counts(self) -> dict[str, int]:
        """Counts since the last call, by the names of counters; leaves out zeros."""
        succeeded, failed = self._reader.take_told_counts()
        counts = {COMMITS_SUCCEEDED: succeeded, COMMITS_FAILED: failed}
        return {name: count for name, count in counts.items() if count}

    def _forget(self, checkpoint_id: CheckpointId) -> None:
        """A completed checkpoint subsumes older ones."""
        self._cuts = {cut: splits for cut, splits in self._cuts.items() if cut > checkpoint_id}
