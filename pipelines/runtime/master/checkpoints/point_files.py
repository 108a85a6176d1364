"""Publishes, deletes and sweeps a run's points as files, off the job master's thread.

Checks the lease before it makes or deletes anything: a successor may use the same place. Does not
decide which points are kept (`protocol.retention`). The manifest says what a checkpoint holds, once
all of its subtasks have acknowledged.

A checkpoint that failed after its publication began is given up: its manifest may be there all the
same. As long as it is there, the checkpoint can be restored, and the output that it names must not
be rolled back. So the manifest is deleted first (`delete_given_up`).
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable, check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RunId, operator_id
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind, SavepointFormat
from pipelines.protocol.effects import Finalize
from pipelines.protocol.retention import RetainedPoint
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.checkpoints.shared_file_deletion import discard_claimed
from pipelines.runtime.master.checkpoints.underway import Underway
from pipelines.runtime.master.job_events import FilesMissing, LocationPrepared, ManifestWritten
from pipelines.runtime.master.run_context import RunContext
from pipelines.storage.manifests import files_of
from pipelines.storage.store import Damage, Publication, shared_location

NOT_OWNED = "this driver no longer owns the run"

log = logging.getLogger(__name__)


class PointFiles:
    def __init__(self, context: RunContext, given_up: Collection[str] = ()) -> None:
        """`given_up`: locations of points that earlier drivers of the run have given up."""
        self._places = context.places
        self._store = context.store
        self._executor = context.executor
        self._owns_run = context.lease.is_current
        self._post = context.post
        self._faults = context.faults
        self._lock = threading.Lock()
        self._waiting: set[str] = set()  # locations whose sweep has not begun
        self._given_up = set(given_up)  # are no points any more, though a manifest may be there

    def location(self, kind: CheckpointKind, checkpoint_id: CheckpointId) -> str:
        is_savepoint = kind is CheckpointKind.SAVEPOINT
        where = self._places.savepoint if is_savepoint else self._places.checkpoint
        return where(checkpoint_id)

    def prepare(self, attempt: Attempt, checkpoint_id: CheckpointId, location: str) -> None:
        """Prepares the checkpoint's location; posts the outcome."""
        self._executor.submit(self._prepare, attempt, checkpoint_id, location)

    def publish(
        self, attempt: Attempt, location: str, manifest: Manifest
    ) -> Future[ManifestWritten]:
        """Posts the outcome. Checks the lease right before the point becomes durable."""
        return self._executor.submit(self._publish, attempt, location, manifest)

    def read_back(self, underway: Underway, said: ManifestWritten) -> ManifestWritten:
        """The result of a publication that the caller has waited for, and that has `said` its own.
        What was refused was not written; after an error, the storage knows. Blocks."""
        if isinstance(said.outcome, FilesMissing):
            return said
        try:
            found = self._store.manifest(underway.location)
        except (CorruptSnapshot, Retryable) as error:
            return ManifestWritten(underway.checkpoint_id, str(error))
        same = found == underway.manifest
        outcome = Publication.PUBLISHED if same else Publication.CONFLICT
        return ManifestWritten(underway.checkpoint_id, outcome)

    def discard_retained(
        self, attempt: Attempt, point: RetainedPoint, then: Callable[[], None]
    ) -> None:
        """Deletes a point that retention has given up; calls `then` once it is gone, if it goes."""
        self._executor.submit(self._discard_retained, attempt, point, then)

    def discard(self, attempt: Attempt, location: str, *, may_be_complete: bool = False) -> None:
        """Repeated calls for one location count once until the first is served.

        `may_be_complete`: its manifest may exist, so the point is given up until it is deleted.
        """
        with self._lock:
            if may_be_complete:
                self._given_up.add(location)
            if location in self._waiting:
                return
            self._waiting.add(location)
        self._executor.submit(self._discard, attempt, location)

    def discard_given_up(self, attempt: Attempt) -> None:
        """Tries again to delete what could not be deleted, when the storage answers again."""
        with self._lock:
            locations = sorted(self._given_up)
        for location in locations:
            self.discard(attempt, location)

    def delete_given_up(self) -> None:
        """Call while this driver holds the lease, before output is rolled back. Blocks.

        Raises Retryable: one is still there, so the output that it names has to stay.
        """
        with self._lock:
            locations = sorted(self._given_up)
        for location in locations:
            try:
                self._store.discard(location)
            except (Retryable, Rejected, OSError) as error:
                raise Retryable(
                    f"{location} was given up and cannot be deleted ({error}). A run that is"
                    " restored from it needs output that this attempt would roll back: see that"
                    " the storage can be written."
                ) from error
            with self._lock:
                self._given_up.discard(location)

    def sweep(self, attempt: Attempt, first_new_id: CheckpointId) -> None:
        """Deletes what earlier attempts wrote for checkpoints that never completed."""
        self._executor.submit(self._sweep, attempt, first_new_id)

    def _prepare(self, attempt: Attempt, checkpoint_id: CheckpointId, location: str) -> None:
        reason, why = None, ""
        try:
            if not self._owns_run(attempt):
                raise Retryable(NOT_OWNED)
            self._store.prepare(location)
        except (Retryable, OSError) as error:
            reason, why = CheckpointFailureReason.IO_EXCEPTION, str(error)
        except Rejected as error:
            reason, why = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, str(error)
        self._post(LocationPrepared(checkpoint_id, reason, why))

    def _publish(self, attempt: Attempt, location: str, manifest: Manifest) -> ManifestWritten:
        self._faults.reach(FaultPoint.ACKNOWLEDGED, attempt)
        outcome = self._try_publish(attempt, location, manifest)
        self._faults.reach(FaultPoint.PUBLISHED, attempt)
        written = ManifestWritten(manifest.checkpoint_id, outcome)
        self._post(written)
        return written

    def _try_publish(
        self, attempt: Attempt, location: str, manifest: Manifest
    ) -> Publication | FilesMissing | str:
        try:
            missing = tuple(self._missing(location, manifest))
            if not self._owns_run(attempt):
                return NOT_OWNED
            return FilesMissing(missing) if missing else self._store.publish(location, manifest)
        except (Retryable, Rejected, OSError) as error:
            return str(error)

    def _missing(self, location: str, manifest: Manifest) -> Iterator[Damage]:
        """Files of earlier checkpoints that the manifest refers to, and that are deleted.

        One listing finds the files that may be missing. A look at each file confirms it, as the
        listing may be older than the file.
        """
        shared = {file.name: file for file in files_of(manifest) if file.is_shared}
        own = f"c{manifest.checkpoint_id}-"
        earlier = {n: f for n, f in shared.items() if f.content is None and not n.startswith(own)}
        there = set(self._store.names(shared_location(location))) if earlier else set()
        for name in sorted(earlier.keys() - there):
            problem = self._store.problem_of(location, earlier[name], reads=False)
            if problem is not None:
                yield Damage(name, problem, is_shared=True)

    def _discard(self, attempt: Attempt, location: str) -> bool:
        """True if it is gone. A failure to delete it is worth a warning; a sweep tries again."""
        with self._lock:
            self._waiting.discard(location)
        if not self._owns_run(attempt):
            return False
        try:
            self._store.discard(location)
        except (Retryable, Rejected, OSError) as error:
            log.warning("%s could not be deleted: %s", location, error)
            return False
        with self._lock:
            self._given_up.discard(location)
        return True

    def _sweep(self, attempt: Attempt, first_new_id: CheckpointId) -> None:
        for root in (self._places.checkpoints, self._places.savepoints):
            try:
                unfinished = self._unfinished(root, first_new_id)
            except (Retryable, Rejected, OSError) as error:
                log.warning("%s could not be swept: %s", root, error)
                continue
            for location in unfinished:
                self._discard(attempt, location)

    def _unfinished(self, root: str, first_new_id: CheckpointId) -> list[str]:
        """What this run has used below `root` for points that are not complete."""
        used = [name for name in self._store.names(root) if self._is_older(name, first_new_id)]
        complete = set(self._store.published(root, among=used)) if used else set()
        with self._lock:
            complete -= self._given_up
        return [f"{root}/{name}" for name in used if f"{root}/{name}" not in complete]

    def _is_older(self, name: str, first_new_id: CheckpointId) -> bool:
        checkpoint_id = self._places.checkpoint_id_of(name)
        return checkpoint_id is not None and checkpoint_id < first_new_id

    def _discard_retained(
        self, attempt: Attempt, point: RetainedPoint, then: Callable[[], None]
    ) -> None:
        if not point.is_claimed:
            if self._discard(attempt, point.location):
                then()
            return
        if not self._owns_run(attempt):
            return
        try:
            discard_claimed(self._store, point.location)
        except (Retryable, Rejected, OSError) as error:
            log.warning("%s could not be deleted: %s", point.location, error)
        else:
            then()


def manifest_of(
    effect: Finalize,
    underway: Underway,
    context: RunContext,
    attempt: Attempt,
    ancestors: list[tuple[RunId, CheckpointId]],
) -> Manifest:
    taken = len(list(context.subtasks()))
    given = len(effect.snapshots)
    check(given == taken, "a manifest holds every subtask's snapshot", given=given, taken=taken)
    return Manifest(
        format_version=FORMAT_VERSION,
        pipeline=context.spec.pipeline,
        run_id=context.spec.run_id,
        attempt=attempt,
        checkpoint_id=effect.checkpoint_id,
        kind=underway.kind,
        savepoint_format=savepoint_format_of(effect.request),
        trigger_ms=underway.trigger_wall_ms,
        completed_ms=context.clock.wall_ms(),
        parallelism=context.spec.parallelism,
        max_parallelism=context.spec.max_parallelism,
        ancestors=ancestors,
        operator_ids={node.uid: operator_id(node.uid) for node in context.pipeline.graph.nodes},
        subtasks=list(effect.snapshots),
        code=context.spec.code,
        parallelisms=context.pipeline.graph.own_parallelisms,
    )


def savepoint_format_of(request: TriggerRequest) -> SavepointFormat | None:
    """None: it is no savepoint."""
    return request.savepoint_format if request.kind is CheckpointKind.SAVEPOINT else None
