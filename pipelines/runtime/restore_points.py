"""Finds what a run can start from: its own retained points and the one it was asked to restore.

Reads storage, verifies, and refuses by name; the choice itself is `protocol.recovery`.
"""

from collections.abc import Callable
from pathlib import Path

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import CheckpointId
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.retention import RetainedPoint
from pipelines.storage.store import CheckpointStore


def own_points(directory: RunDirectory, store: CheckpointStore) -> list[RetainedPoint]:
    """Points that an earlier driver of this run published, and readable enough to name.

    A point whose manifest cannot be read is kept in the list by its directory's name, so that
    it is refused loudly when its turn comes, and not passed over.
    """
    found = [
        *store.published(str(directory.checkpoints)),
        *(
            location
            for location in store.published(str(directory.savepoints))
            if Path(location).name.startswith(f"savepoint-{directory.run_id}-")
        ),
    ]
    return [_named_point(location) for location in found]


def _named_point(location: str) -> RetainedPoint:
    name = Path(location).name
    checkpoint_id = CheckpointId(int(name.rpartition("-")[2]))
    return RetainedPoint(checkpoint_id, location, name.startswith("savepoint-"))


def next_checkpoint_id(directory: RunDirectory, spec: RunSpec) -> CheckpointId:
    """Above every id that any attempt of this run may have used, complete or not."""
    used = [
        int(path.name.rpartition("-")[2])
        for root in (directory.checkpoints, directory.savepoints)
        if root.is_dir()
        for path in root.iterdir()
        if path.name.startswith(("chk-", f"savepoint-{directory.run_id}-"))
    ]
    return CheckpointId(max([spec.first_checkpoint_id - 1, *used]) + 1)


def verifier(
    store: CheckpointStore, spec: RunSpec, graph: JobGraph
) -> Callable[[RetainedPoint], str | None]:
    """Answers why a point cannot be used, or None. Reads every byte of it."""

    def problem_of(point: RetainedPoint) -> str | None:
        damages = store.verify(point.location)
        if damages:
            return damages[0].problem
        try:
            check_fits(store.manifest(point.location), point.location, spec, graph)
        except Rejected as error:
            return str(error)
        return None

    return problem_of


def check_fits(manifest: Manifest, location: str, spec: RunSpec, graph: JobGraph) -> None:
    """Raises Rejected in a sentence: another pipeline's point, other key groups, unknown uids."""
    if manifest.pipeline != spec.pipeline:
        raise Rejected(
            f"{location} is a point of the pipeline {manifest.pipeline!r} and cannot be restored "
            f"into {spec.pipeline!r}."
        )
    if manifest.max_parallelism != spec.max_parallelism:
        raise Rejected(
            f"{location} was written with a maximum parallelism of {manifest.max_parallelism}; "
            f"this run has {spec.max_parallelism}, and key groups cannot be remapped."
        )
    known = {node.uid for node in graph.nodes}
    unknown = sorted(_stateful_uids(manifest) - known)
    if unknown:
        raise Rejected(
            f"{location} holds state of the operator {unknown[0]!r}, which the pipeline "
            f"{spec.pipeline!r} does not have any more."
        )


def _stateful_uids(manifest: Manifest) -> set[str]:
    return {
        operator.uid
        for subtask in manifest.subtasks
        for operator in subtask.operators
        if operator.states or operator.committables or operator.positions is not None
    }


def requested_point(spec: RunSpec, store: CheckpointStore) -> RetainedPoint | None:
    """The point a run was asked to start from. Raises CorruptSnapshot when it cannot be read."""
    if spec.restore_from is None:
        return None
    manifest = store.manifest(spec.restore_from)
    is_savepoint = manifest.kind is CheckpointKind.SAVEPOINT
    return RetainedPoint(manifest.checkpoint_id, spec.restore_from, is_savepoint)
