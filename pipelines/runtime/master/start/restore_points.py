"""Finds the points that a run can start from: its own retained ones and the requested one.

Reads storage, verifies, and refuses by name; `protocol.recovery` makes the choice.
"""

from collections.abc import Callable, Sequence

from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.ids import CheckpointId
from pipelines.domain.run import RunSpec, SnapshotPlaces, scheme_of
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.points.fit import PointFit
from pipelines.protocol.retention import RetainedPoint
from pipelines.storage.store import CheckpointStore, Damage, WatchVerification


def own_points(places: SnapshotPlaces, store: CheckpointStore) -> list[RetainedPoint]:
    """Points that an earlier driver of this run published, if at least their names can be read.

    A point whose manifest cannot be read stays in the list under its directory's name. So it is
    refused loudly when its turn comes, and not passed over.

    Raises:
        Retryable: the storage does not answer.
    """
    points = []
    for root in (places.checkpoints, places.savepoints):
        ids = {name: places.checkpoint_id_of(name) for name in store.names(root)}
        own = {name: checkpoint_id for name, checkpoint_id in ids.items() if checkpoint_id}
        for location in store.published(root, among=own):
            name = location.rpartition("/")[2]
            points.append(RetainedPoint(own[name], location, name.startswith("savepoint-")))
    return points


def claimed_point(spec: RunSpec, store: CheckpointStore) -> list[RetainedPoint]:
    """The point that the run was restored from, if it is the run's to delete and still there."""
    if spec.restore_from is None or spec.claim_mode is not ClaimMode.CLAIM:
        return []
    try:
        manifest = store.manifest(spec.restore_from)
    except CorruptSnapshot:
        return []  # deleted long ago; or damaged, which the choice of a point reports if it matters
    return [RetainedPoint(manifest.checkpoint_id, spec.restore_from, is_claimed=True)]


def next_checkpoint_id(
    places: SnapshotPlaces, store: CheckpointStore, spec: RunSpec, newest_triggered: CheckpointId
) -> CheckpointId:
    """Above every id that any attempt of this run may have used, complete or not.

    `newest_triggered` comes from the journal. Ids in the storage count, too, because a loss of the
    machine may cost a journal its last lines.
    """
    names = [*store.names(places.checkpoints), *store.names(places.savepoints)]
    used = [places.checkpoint_id_of(name) or 0 for name in names]
    return CheckpointId(max([spec.first_checkpoint_id - 1, newest_triggered, *used]) + 1)


def verifier(
    store: CheckpointStore,
    fit: PointFit,
    watch: WatchVerification,
    on_damaged: Callable[[RetainedPoint, Sequence[Damage]], None] = lambda point, damages: None,
) -> Callable[[RetainedPoint], str | None]:
    """Returns a function that says why a point cannot be used, or None. It reads every byte of the
    point, reports to `watch` after each file, and passes all damages to `on_damaged`. It raises
    Retryable if the answer is not known now."""

    def problem_of(point: RetainedPoint) -> str | None:
        damages = store.verify(point.location, watch)
        if damages:
            check_mounted(store, point.location)
            on_damaged(point, damages)
            return damages[0].problem
        try:
            fit.check(store.manifest(point.location), point.location)
        except Rejected as error:
            return str(error)
        return None

    return problem_of


def check_mounted(store: CheckpointStore, location: str) -> None:
    """Tells a damaged point from a disk that is not mounted, whose directory is empty or absent.

    Raises Retryable for the latter: the point may be whole.
    """
    root = location.rstrip("/").rpartition("/")[0]
    if not scheme_of(root) and not store.names(root):
        raise Retryable(
            f"{location} is missing, and {root} is empty: see that the storage is mounted."
        )


def requested_point(spec: RunSpec, store: CheckpointStore) -> RetainedPoint | None:
    """The point that the run is to start from. Raises CorruptSnapshot if it is damaged."""
    if spec.restore_from is None:
        return None
    try:
        manifest = store.manifest(spec.restore_from)
    except CorruptSnapshot:
        check_mounted(store, spec.restore_from)
        raise
    is_savepoint = manifest.kind is CheckpointKind.SAVEPOINT
    return RetainedPoint(manifest.checkpoint_id, spec.restore_from, is_savepoint)
