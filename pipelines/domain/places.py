"""Where the snapshots of a run are: checkpoints by run, savepoints by pipeline; a path or a URL.

The run's own directory (journal, lease, requests) is in `domain.run`, always on a shared file
system. Source: Flink's layout, `<execution.checkpointing.dir>/<job id>/chk-<id>`.
"""

import re
from dataclasses import dataclass

from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.settings import CheckpointStorage, Settings

OBJECT_SCHEMES = ("s3",)
MEMORY = "memory"
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")


def scheme_of(location: str) -> str:
    """`s3` of `s3://bucket/key`; empty for a path."""
    match = _SCHEME.match(location)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class SnapshotPlaces:
    """`checkpoints` belongs to the run alone. All runs share `savepoints` and `quarantine`, a path
    for the records that no operator gets."""

    run_id: RunId
    checkpoints: str
    savepoints: str
    quarantine: str = ""

    @classmethod
    def of(cls, directory: RunDirectory, settings: Settings) -> "SnapshotPlaces":
        run_id, home = directory.run_id, directory.path.parent.parent
        if settings.checkpoint_storage is CheckpointStorage.JOBMANAGER:
            checkpoints = f"{MEMORY}://{run_id}"
        elif settings.checkpoint_dir:
            checkpoints = f"{settings.checkpoint_dir}/{run_id}"
        else:
            checkpoints = str(directory.path / "checkpoints")
        savepoints = settings.savepoint_dir or str(home / "savepoints")
        return cls(run_id, checkpoints, savepoints, str(directory.quarantine))

    def checkpoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.checkpoints}/chk-{checkpoint_id}"

    def savepoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.savepoints}/savepoint-{self.run_id}-{checkpoint_id}"

    def checkpoint_id_of(self, name: str) -> CheckpointId | None:
        """The id in the name of a directory of this run; None if it is not a point of the run."""
        match = re.fullmatch(rf"(?:chk|savepoint-{re.escape(self.run_id)})-([0-9]{{1,18}})", name)
        return CheckpointId(int(match[1])) if match else None
