"""A run's points as files: publishes and keeps them, looks for damage, deletes and sweeps.

Checks the lease before it makes or deletes anything: a successor may use the same place. Does not
decide which points are kept (`protocol.retention`). Writes the manifest, which lists the contents
of a checkpoint, once all subtasks have acknowledged.

A checkpoint that failed after its publication began is given up, but its manifest may exist. As
long as it exists, the checkpoint can be restored, and the output that it names must not be rolled
back. So the manifest is deleted first (`delete_given_up`).

At intervals, a separate thread reads every byte of every retained point, so that damage is found
before a recovery needs the point. `damage_memory` decides what follows: it marks the point, and
every other one that refers to the same file. A marked point that is whole again loses its mark.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.clock import Clock
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable, check
from pipelines.domain.events import (
    CheckpointDiscarded,
    ClaimedPointDiscarded,
    Event,
    PointsVerified,
    RestorePointRefused,
)
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, operator_id
from pipelines.domain.settings import CheckpointStorage, ExternalizedRetention
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import (
    CheckpointKind,
    DamageFinder,
    JobStatus,
    RequestOutcome,
    SavepointFormat,
)
from pipelines.protocol.effects import Finalize
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.checkpoints.shared_file_deletion import (
    SharedFilesHost,
    discard_claimed,
)
from pipelines.runtime.master.checkpoints.underway import Underway
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.job_events import (
    FilesMissing,
    JobEvent,
    LocationPrepared,
    ManifestWritten,
    PointsLookedAt,
    WatchedExecutor,
)
from pipelines.runtime.master.run_context import RunContext
from pipelines.runtime.master.start.starting_point import check_mounted
from pipelines.storage.manifests import files_of
from pipelines.storage.store import CheckpointStore, Damage, Publication, shared_location

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
        self._given_up = set(given_up)  # no points any more, though a manifest may exist

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
        """Writes the manifest and posts the outcome. Checks the lease right before the write."""
        return self._executor.submit(self._publish, attempt, location, manifest)

    def read_back(self, underway: Underway, said: ManifestWritten) -> ManifestWritten:
        """Returns the true result of a finished publication that reported `said`: after an error,
        the manifest may have been written all the same. Blocks."""
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
        """Deletes a point that retention has given up, and calls `then` if that succeeded."""
        self._executor.submit(self._discard_retained, attempt, point, then)

    def discard(self, attempt: Attempt, location: str, *, may_be_complete: bool = False) -> None:
        """Deletes a location. Repeated calls for it count once until its deletion begins.

        If `may_be_complete`, its manifest may exist, so the point is given up until it is deleted.
        """
        with self._lock:
            if may_be_complete:
                self._given_up.add(location)
            if location in self._waiting:
                return
            self._waiting.add(location)
        self._executor.submit(self._discard, attempt, location)

    def discard_given_up(self, attempt: Attempt) -> None:
        """Tries again to delete given-up points. Call when the storage answers again."""
        with self._lock:
            locations = sorted(self._given_up)
        for location in locations:
            self.discard(attempt, location)

    def delete_given_up(self) -> None:
        """Call while this driver holds the lease, before output is rolled back. Blocks.

        Raises Retryable if a point still exists, because the output that it names has to stay then.
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
        """Deletes the files of checkpoints that earlier attempts never completed."""
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
        """Yields the files of earlier checkpoints that the manifest refers to but that are gone.

        One listing finds the files that may be missing. A look at each of them confirms it, as the
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
        """Returns True if it is gone. A failed deletion is only logged: a sweep tries again."""
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
        """Returns the locations below `root` that this run used for points that never completed."""
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
    """Returns None if the request is not for a savepoint."""
    return request.savepoint_format if request.kind is CheckpointKind.SAVEPOINT else None


class PointKeeper:
    def __init__(
        self,
        context: RunContext,
        points: RetainedPoints,
        files: PointFiles,
        shared: SharedFilesHost,
        damage: DamageMemory,
    ) -> None:
        self._context = context
        self._points = points
        self._files = files
        self._shared = shared
        self._damage = damage

    def on_completed(self, underway: Underway) -> None:
        """Keeps the point; marks it if damage was found while its manifest was being written."""
        point = underway.point
        damage = self._damage.on_completed(point)
        if damage is not None:
            self._context.record.emit(RestorePointRefused(path=point.location, message=damage))
        self._give_up(self._points.on_completed(point, damage))

    def on_run_ended(self, status: JobStatus) -> None:
        """Deletes all points except those that the run's retention policy keeps."""
        policy = self._context.settings.checkpointing.retention
        if self._context.settings.storage.kind is CheckpointStorage.JOBMANAGER:
            policy = ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS  # memory ends with a driver
        self._give_up(self._points.on_run_ended(status, policy))

    def _give_up(self, points: list[RetainedPoint]) -> None:
        """Deletes the points. Reports a checkpoint of this run as discarded at once, as a sweep
        deletes what may be left of it. Reports a claimed point, which the page of another run
        shows, only once it is gone."""
        attempt = self._context.fence.current
        for point in points:
            if point.is_claimed:
                self._files.discard_retained(attempt, point, partial(self._say_gone, point))
                continue
            self._files.discard_retained(attempt, point, self._shared.on_discarded(attempt, point))
            self._context.record.emit(CheckpointDiscarded(checkpoint_id=point.checkpoint_id))

    def _say_gone(self, point: RetainedPoint) -> None:
        """Any thread may call this."""
        self._context.record.emit(ClaimedPointDiscarded(path=point.location))


class PointVerifier:
    """Reads the retained points at intervals and on request; with `interval_ms` 0, only on request.

    Call it on the job master's thread. One reading runs at a time. Requests that arrive during a
    reading share the next one, because the current one may have read a file before it was damaged.
    """

    def __init__(
        self,
        *,
        store: CheckpointStore,
        clock: Clock,
        interval_ms: int,
        damage: DamageMemory,
        emit: Callable[[Event], None],
        post: Callable[[JobEvent], None],
        answer: Callable[[RequestId, RequestOutcome, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._damage = damage
        self._emit = emit
        self._post = post
        self._answer = answer
        reader = ThreadPoolExecutor(1, thread_name_prefix="verification")
        self._reader = WatchedExecutor(reader, post)
        self._is_reading = False
        self._waiting: list[RequestId] = []  # wait for the next reading
        self._answered: list[RequestId] = []  # by the reading under way
        self._due_ms = self._next_due_ms()

    @property
    def due_ms(self) -> float | None:
        """When the next reading is due, monotonic; None if readings are off or one is under way."""
        return None if self._is_reading else self._due_ms

    def on_request(self, request_id: RequestId) -> None:
        """Makes a reading due now, which answers the request: another process has found damage."""
        self._waiting.append(request_id)
        self._due_ms = self._next_due_ms()

    def start_when_due(self, now_ms: float, points: RetainedPoints) -> None:
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return
        self._is_reading = True
        self._answered, self._waiting = self._waiting, []
        self._reader.submit(self._read, points.every_newest_first(), self._damage.remembered)

    def on_looked_at(self, looked: PointsLookedAt, points: RetainedPoints) -> None:
        """Takes the result of a reading. A point that retention has deleted meanwhile does not
        count, but its shared files do."""
        check(self._is_reading, "a reading ends once")
        self._is_reading = False
        self._due_ms = self._next_due_ms()
        for point, damages in looked.damaged:
            said = f"Looked at again: {damages[0].problem}"
            self._damage.on_found(point, damages, DamageFinder.VERIFICATION, said)
        kept = points.every_newest_first()
        whole = [point for point in looked.whole if point in kept]
        damaged_count = sum(point in kept for point, _ in looked.damaged)
        self._damage.on_whole(whole, looked.known)
        self._emit(
            PointsVerified(
                whole=len(whole),
                damaged=damaged_count,
                not_counted=looked.point_count - len(whole) - damaged_count,
                duration_ms=looked.duration_ms,
                paths=[point.location for point in whole],
            )
        )
        said = f"The driver has read the points: {len(whole)} whole, {damaged_count} damaged."
        for request_id in self._answered:
            self._answer(request_id, RequestOutcome.SUCCEEDED, said)

    def close(self) -> None:
        """Does not wait for a reading under way."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _next_due_ms(self) -> float | None:
        now_ms = self._clock.monotonic_ms()
        if self._waiting:
            return now_ms
        return now_ms + self._interval_ms if self._interval_ms else None

    def _read(self, points: list[RetainedPoint], known: frozenset[str]) -> None:
        began_ms = self._clock.monotonic_ms()
        whole, damaged = [], []
        for point in points:
            try:
                check_mounted(self._store, point.location)
                damages = self._store.verify(point.location)
                if damages:
                    check_mounted(self._store, point.location)
            except (Retryable, OSError) as error:  # a fault of the storage, not of the point
                log.warning("%s could not be looked at: %s", point.location, error)
                continue
            if damages:
                damaged.append((point, tuple(damages)))
            else:
                whole.append(point)
        duration_ms = self._clock.monotonic_ms() - began_ms
        looked = PointsLookedAt(tuple(whole), tuple(damaged), duration_ms, len(points), known)
        self._post(looked)
