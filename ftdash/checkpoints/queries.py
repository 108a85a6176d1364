"""The only readers of the rows of checkpoints."""

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    CheckpointHistory,
    RecoveryPoint,
)


def checkpoints(run_id: str, page: int = 1, per_page: int = 25) -> CheckpointHistory | None:
    """One page of a run's history; a page beyond the last is the last. None: no such run."""
    raise NotImplementedError


def alignment(run_id: str, checkpoint_id: int | None = None) -> AlignmentTimeline | None:
    """Of one checkpoint, or of the newest completed one; None if there is none."""
    raise NotImplementedError


def recovery_points(pipeline: str, limit: int = 50) -> list[RecoveryPoint]:
    """What a run can be restored from: savepoints and retained checkpoints, newest first."""
    raise NotImplementedError
