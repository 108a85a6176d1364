"""Writes down what a checkpoint holds, once all of its subtasks have acknowledged."""

from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.operator_ids import operator_id
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind, SavepointFormat
from pipelines.protocol.checkpoint_effects import Finalize
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.checkpoint_surroundings import CheckpointSurroundings
from pipelines.runtime.master.underway import Underway


def manifest_of(
    effect: Finalize,
    underway: Underway,
    around: CheckpointSurroundings,
    attempt: Attempt,
    ancestors: list[tuple[RunId, CheckpointId]],
) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        pipeline=around.spec.pipeline,
        run_id=around.spec.run_id,
        attempt=attempt,
        checkpoint_id=effect.checkpoint_id,
        kind=underway.kind,
        savepoint_format=savepoint_format_of(effect.request),
        trigger_ms=underway.trigger_wall_ms,
        completed_ms=around.clock.wall_ms(),
        parallelism=around.spec.parallelism,
        max_parallelism=around.spec.max_parallelism,
        ancestors=ancestors,
        operator_ids={node.uid: operator_id(node.uid) for node in around.graph.nodes},
        subtasks=list(effect.snapshots),
    )


def savepoint_format_of(request: TriggerRequest) -> SavepointFormat | None:
    """None: it is no savepoint."""
    return request.savepoint_format if request.kind is CheckpointKind.SAVEPOINT else None
