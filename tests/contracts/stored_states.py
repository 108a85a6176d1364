"""States of an operator in every form that a point has, restored as a subtask restores them.

The code of a run writes and reads the files; only the pipeline is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipelines.domain.elements import Barrier
from pipelines.domain.graph import Vertex
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.operators.operator import OperatorContext
from pipelines.runtime.subtask.chains.chain import ChainPlace
from pipelines.runtime.subtask.chains.chain_node import ChainNode, SinkCut
from pipelines.runtime.subtask.snapshots.restoring import RestorePoint
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.state.backend import StateBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.points import manifest_of, store_in

UID = Uid("both")
RUN = RunId("run-1")
FIRST = CheckpointId(1)


class StoredAs(StrEnum):
    CHECKPOINT = "checkpoint"  # whole or incremental, as the backend is set
    CANONICAL = "canonical savepoint"
    NATIVE = "native savepoint"


BARRIERS = {
    StoredAs.CHECKPOINT: Barrier(checkpoint_id=FIRST, trigger_ms=0),
    StoredAs.CANONICAL: Barrier(checkpoint_id=FIRST, trigger_ms=0, is_savepoint=True),
    StoredAs.NATIVE: Barrier(checkpoint_id=FIRST, trigger_ms=0, is_savepoint=True, is_native=True),
}


@dataclass(frozen=True, slots=True)
class StoredStates:
    location: str
    store: FileSystemCheckpointStore
    max_parallelism: int
    subtasks: list[SubtaskSnapshot]

    def restore(self, backend: StateBackend, subtask: int = 0, parallelism: int = 1) -> None:
        """Restores declared states of the same uid in another run. Raises as a subtask does."""
        manifest = manifest_of([], subtasks=self.subtasks, parallelism=len(self.subtasks))
        point = RestorePoint(self.store, self.location, manifest)
        groups = range_of(subtask, parallelism, self.max_parallelism)
        for stored in point.share_of(UID, subtask, parallelism, groups).states:
            if stored.database is None or not backend.adopt(stored.database):
                backend.restore(stored.name, stored.rows)


def store_states(
    root: Path, backends: Sequence[StateBackend], stored_as: StoredAs, max_parallelism: int
) -> StoredStates:
    """Stores the states of all subtasks of one operator in one point."""
    store, location = store_in(root), str(root / "points" / "chk-1")
    writer = SnapshotWriter(store)
    barrier = BARRIERS[stored_as]
    snapshots = []
    for subtask, backend in enumerate(backends):
        vertex = Vertex(UID, (UID,), ())
        place = ChainPlace(RUN, Attempt(1), vertex, subtask, len(backends), max_parallelism)
        context = OperatorContext(
            uid=UID,
            subtask=subtask,
            parallelism=len(backends),
            state=backend,
            collect=lambda batch: None,
        )
        cut = SubtaskCut(
            place=place,
            operators=[ChainNode(UID, context).cut(barrier, SinkCut())],
            positions=None,
            watermark_ms=None,
            key_times_ms=[],
        )
        written = writer.write(cut, FIRST, location, open_format=stored_as is StoredAs.CANONICAL)
        snapshots.append(written.snapshot)
    return StoredStates(location, store, max_parallelism, snapshots)
