"""The output that belongs to a starting point, which all sinks derive from its lineage."""

from collections.abc import Sequence

from pipelines.domain.ids import CheckpointId, RunId

Lineage = Sequence[tuple[RunId, CheckpointId]]
"""The points from which a starting point descends, oldest first, itself last."""


def newest_of(lineage: Lineage) -> dict[RunId, int]:
    """For each run, the newest checkpoint whose output belongs to the lineage."""
    newest: dict[RunId, int] = {}
    for run_id, checkpoint_id in lineage:
        newest[run_id] = max(checkpoint_id, newest.get(run_id, 0))
    return newest
