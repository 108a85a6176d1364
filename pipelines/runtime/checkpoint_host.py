"""Carries out what the coordinator machines decide: barriers, manifests, retention, answers.

Runs on the job master's thread; manifests are written and old points deleted on an executor, and
their outcome comes back as an event. Decides nothing itself.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import msgspec

from pipelines.domain.clock import Clock
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointTriggered,
    ClaimedPointDiscarded,
    Event,
    SubtaskAcknowledged,
    ZombieRefused,
)
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.faults import FaultPoint
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.operator_ids import operator_id
from pipelines.domain.phases import SubtaskPhases
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunSpec
from pipelines.domain.settings import Settings
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind, SavepointFormat
from pipelines.protocol.coordination import (
    AbortCheckpoint,
    CheckpointCoordinator,
    Complete,
    CoordinationEffect,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.fencing import AttemptFence, Stale
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.protocol.triggering import Start, TriggerDecider, TriggerRequest, WaitUntil
from pipelines.runtime.attempt_host import AttemptHost
from pipelines.runtime.control import Aborted, Acknowledged, Committed, Declined
from pipelines.runtime.control import Inject as InjectMessage
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.job_events import JobEvent, ManifestWritten
from pipelines.storage.store import CheckpointStore, Publication

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Underway:
    """What the host knows of the pending checkpoint, beside the machine's own view."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    location: str
    triggered_ms: float  # monotonic
    trigger_wall_ms: int
    phases: list[SubtaskPhases] = field(default_factory=list)
    source_records: int = 0
    watermarks_ms: list[int] = field(default_factory=list)
    manifest: Manifest | None = None
    publication: Future[None] | None = None
    is_ours: bool = True  # False: another driver has published under this id


@dataclass(frozen=True, slots=True)
class CheckpointSurroundings:
    """What a checkpoint host works with; all of it outlives every attempt."""

    spec: RunSpec
    places: SnapshotPlaces
    settings: Settings
    graph: JobGraph
    store: CheckpointStore
    clock: Clock
    executor: Executor
    fence: AttemptFence
    owns_run: Callable[[Attempt], bool]  # asks the lease, before anything becomes durable
    emit: Callable[[Event], None]
    post: Callable[[JobEvent], None]
    faults: Faults = NO_FAULTS


class CheckpointListener:
    """What the job master wants to know. Subclassed by it; called on its thread."""

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        raise NotImplementedError

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        raise NotImplementedError

    def too_many_failures(self, message: str) -> None:
        raise NotImplementedError


class CheckpointHost:
    def __init__(
        self,
        surroundings: CheckpointSurroundings,
        points: RetainedPoints,
        first_id: CheckpointId,
        listener: CheckpointListener,
    ) -> None:
        self._around = surroundings
        self._listener = listener
        settings = surroundings.settings
        self.points = points
        self.ancestors: list[tuple[RunId, CheckpointId]] = []
        self.last_completed_ms: int | None = None
        self.last_committed_ms: int | None = None
        self._decider = TriggerDecider(settings.checkpoint_interval_ms, settings.min_pause_ms)
        self._coordinator = CheckpointCoordinator(
            first_id=first_id, tolerable_failures=settings.tolerable_failed_checkpoints
        )
        self._attempt: AttemptHost | None = None
        self._underway: _Underway | None = None
        self._uncommitted: dict[CheckpointId, set[SubtaskId]] = {}
        self._sink_subtasks: set[SubtaskId] = set()

    # What the job master passes on.

    def on_running(self, attempt: AttemptHost) -> None:
        """All slots run: checkpoints may be triggered."""
        self._attempt = attempt
        graph, parallelism = self._around.graph, self._around.spec.parallelism
        shapes = graph.shape()
        self._sink_subtasks = {
            SubtaskId(shape.uid, index)
            for shape in shapes
            if shape.is_sink
            for index in range(parallelism)
        }
        self._uncommitted = {}
        self._coordinator.on_running(
            SubtaskId(shape.uid, index) for shape in shapes for index in range(parallelism)
        )
        self._decider.on_running(self._around.clock.monotonic_ms())

    def on_stopped(self, reason: CheckpointFailureReason, why: str) -> None:
        """The attempt is over. A manifest on its way is waited for: it may make a point."""
        underway = self._underway
        if underway is not None and underway.publication is not None:
            underway.publication.result()  # posts ManifestWritten; its outcome is read below
            self.on_manifest(self._outcome_of(underway))
        self._attempt = None
        self._carry_out(self._coordinator.on_stopped(reason, why))
        self._decider.on_stopped()

    def on_request(self, request: TriggerRequest) -> bool:
        return self._decider.on_request(request)

    def drop_requests(self) -> list[TriggerRequest]:
        return self._decider.drop_requests()

    def on_sources_ended(self) -> None:
        self._decider.on_sources_ended()

    def on_time(self) -> float | None:
        """Start what is due and expire what is late; when to be called again, monotonic."""
        now_ms = self._around.clock.monotonic_ms()
        underway = self._underway
        if underway is not None:
            expires_ms = underway.triggered_ms + self._around.settings.checkpoint_timeout_ms
            if now_ms < expires_ms:
                return expires_ms
            self._carry_out(self._coordinator.on_expired(underway.checkpoint_id))
        match self._decider.next(now_ms):
            case Start(request):
                self._decider.on_started(request, now_ms)
                self._carry_out(self._coordinator.on_trigger(request))
                return self._around.settings.checkpoint_timeout_ms + now_ms
            case WaitUntil(monotonic_ms):
                return monotonic_ms

    def on_acknowledged(self, message: Acknowledged) -> None:
        underway = self._underway
        if underway is None or underway.checkpoint_id != message.checkpoint_id:
            return
        elapsed_ms = self._around.clock.monotonic_ms() - underway.triggered_ms
        phases = msgspec.structs.replace(message.phases, acknowledged_ms=elapsed_ms)
        underway.phases.append(phases)
        underway.source_records += message.source_records
        if message.watermark_ms is not None:
            underway.watermarks_ms.append(message.watermark_ms)
        event = SubtaskAcknowledged(checkpoint_id=message.checkpoint_id, phases=phases)
        self._around.emit(event)
        self._carry_out(self._coordinator.on_acknowledged(message.checkpoint_id, message.snapshot))

    def on_declined(self, message: Declined) -> None:
        why = f"{message.vertex}[{message.subtask}]: {message.message}"
        self._carry_out(self._coordinator.on_declined(message.checkpoint_id, message.reason, why))

    def on_committed(self, message: Committed) -> None:
        waiting = self._uncommitted.get(message.checkpoint_id)
        if waiting is None:
            return
        waiting.discard(SubtaskId(message.vertex, message.subtask))
        if not waiting:
            del self._uncommitted[message.checkpoint_id]
            self.last_committed_ms = self._around.clock.wall_ms()
            self._around.emit(CheckpointCommitted(checkpoint_id=message.checkpoint_id))

    def on_manifest(self, written: ManifestWritten) -> None:
        underway = self._underway
        if underway is None or underway.checkpoint_id != written.checkpoint_id:
            return
        underway.publication = None
        match written.outcome:
            case Publication.PUBLISHED | Publication.ALREADY_PUBLISHED:
                effects = self._coordinator.on_published(written.checkpoint_id)
            case Publication.CONFLICT:
                underway.is_ours = False
                effects = self._coordinator.on_unpublished(
                    written.checkpoint_id, "another driver has published this checkpoint"
                )
            case str(why):
                effects = self._coordinator.on_unpublished(written.checkpoint_id, why)
        self._carry_out(effects)

    # What the machines decide.

    def _carry_out(self, effects: list[CoordinationEffect]) -> None:
        for effect in effects:
            match effect:
                case Inject():
                    self._inject(effect)
                case Finalize():
                    self._finalize(effect)
                case Complete():
                    self._complete(effect)
                case AbortCheckpoint():
                    self._abort(effect)
                case FailAttempt(message):
                    self._listener.too_many_failures(message)

    def _inject(self, effect: Inject) -> None:
        around, request = self._around, effect.request
        is_savepoint = request.kind is CheckpointKind.SAVEPOINT
        where = around.places.savepoint if is_savepoint else around.places.checkpoint
        self._underway = _Underway(
            effect.checkpoint_id,
            request.kind,
            where(effect.checkpoint_id),
            around.clock.monotonic_ms(),
            around.clock.wall_ms(),
        )
        around.emit(
            CheckpointTriggered(
                checkpoint_id=effect.checkpoint_id,
                kind=request.kind,
                trigger_ms=self._underway.trigger_wall_ms,
                subtask_count=len(around.graph.vertices) * around.spec.parallelism,
                request_id=request.request_id,
            )
        )
        if self._attempt is not None:
            self._attempt.broadcast(
                InjectMessage(
                    checkpoint_id=effect.checkpoint_id,
                    trigger_ms=self._underway.trigger_wall_ms,
                    location=self._underway.location,
                    savepoint_format=_format_of(request),
                    is_final=request.stops_run,
                )
            )

    def _finalize(self, effect: Finalize) -> None:
        underway, attempt = self._underway, self._attempt
        if underway is None or attempt is None:
            return
        underway.manifest = self._manifest(effect, underway, attempt.attempt)
        underway.publication = self._around.executor.submit(
            self._publish, attempt.attempt, underway.location, underway.manifest
        )

    def _publish(self, attempt: Attempt, location: str, manifest: Manifest) -> None:
        """On the executor: the lease is asked right before the point becomes durable."""
        self._around.faults.reach(FaultPoint.ACKNOWLEDGED, attempt)
        outcome = self._try_publish(attempt, location, manifest)
        self._around.faults.reach(FaultPoint.PUBLISHED, attempt)
        self._around.post(ManifestWritten(attempt, manifest.checkpoint_id, outcome))

    def _try_publish(
        self, attempt: Attempt, location: str, manifest: Manifest
    ) -> Publication | str:
        if not self._around.owns_run(attempt):
            return "this driver no longer owns the run"
        try:
            return self._around.store.publish(location, manifest)
        except (Retryable, Rejected, OSError) as error:
            return str(error)

    def _outcome_of(self, underway: _Underway) -> ManifestWritten:
        """Read back what a publication that was waited for has left."""
        attempt = self._around.fence.current
        try:
            found = self._around.store.manifest(underway.location)
        except (CorruptSnapshot, Retryable) as error:
            return ManifestWritten(attempt, underway.checkpoint_id, str(error))
        same = found == underway.manifest
        outcome = Publication.PUBLISHED if same else Publication.CONFLICT
        return ManifestWritten(attempt, underway.checkpoint_id, outcome)

    def _complete(self, effect: Complete) -> None:
        underway, around = self._underway, self._around
        self._underway = None
        self._decider.on_ended(around.clock.monotonic_ms())
        if underway is None or underway.manifest is None:
            return
        self.last_completed_ms = around.clock.wall_ms()
        around.emit(self._completed_event(underway, underway.manifest))
        self._retain(underway)
        self._uncommitted[effect.checkpoint_id] = set(self._sink_subtasks)
        self._announce(effect.checkpoint_id)
        if effect.request.stops_run:
            self._decider.on_stopped()  # nothing follows the checkpoint that ends the run
        self._listener.checkpoint_completed(effect.request, underway.location)

    def _announce(self, checkpoint_id: CheckpointId) -> None:
        if self._attempt is None:
            return  # the attempt ended meanwhile; the restored one commits
        match self._around.fence.permit_commit(self._attempt.attempt, checkpoint_id):
            case Stale(attempt):
                self._around.emit(ZombieRefused(zombie_attempt=attempt, what="a commit"))
            case permit:
                self._attempt.announce_completed(permit)

    def _abort(self, effect: AbortCheckpoint) -> None:
        underway = self._underway
        self._underway = None
        self._decider.on_ended(self._around.clock.monotonic_ms())
        self._around.emit(
            CheckpointFailed(
                checkpoint_id=effect.checkpoint_id,
                reason=effect.reason,
                message=effect.message,
                request_id=effect.request.request_id,
            )
        )
        if self._attempt is not None:
            self._attempt.broadcast(Aborted(checkpoint_id=effect.checkpoint_id))
        if underway is not None and underway.is_ours:
            attempt = self._around.fence.current
            self._around.executor.submit(self._discard_unfinished, attempt, underway.location)
        self._listener.checkpoint_aborted(effect.request, f"{effect.reason} {effect.message}")

    def _discard_unfinished(self, attempt: Attempt, location: str) -> None:
        """On the executor: a successor may use the same id, so files are its own once it owns
        the run."""
        if self._around.owns_run(attempt):
            self._discard(location)

    def _discard(self, location: str) -> None:
        """On the executor. What cannot be deleted stays as garbage, which is worth a warning."""
        try:
            self._around.store.discard(location)
        except Retryable as error:
            log.warning("%s could not be deleted: %s", location, error)

    def _retain(self, underway: _Underway) -> None:
        point = RetainedPoint(
            underway.checkpoint_id, underway.location, underway.kind is CheckpointKind.SAVEPOINT
        )
        for superfluous in self.points.on_completed(point):
            self._around.executor.submit(self._discard, superfluous.location)
            self._around.emit(_discarded_event(superfluous))

    def _manifest(self, effect: Finalize, underway: _Underway, attempt: Attempt) -> Manifest:
        around = self._around
        return Manifest(
            format_version=FORMAT_VERSION,
            pipeline=around.spec.pipeline,
            run_id=around.spec.run_id,
            attempt=attempt,
            checkpoint_id=effect.checkpoint_id,
            kind=underway.kind,
            savepoint_format=_format_of(effect.request),
            trigger_ms=underway.trigger_wall_ms,
            completed_ms=around.clock.wall_ms(),
            parallelism=around.spec.parallelism,
            max_parallelism=around.spec.max_parallelism,
            ancestors=self.ancestors,
            operator_ids={node.uid: operator_id(node.uid) for node in around.graph.nodes},
            subtasks=list(effect.snapshots),
        )

    def _completed_event(self, underway: _Underway, manifest: Manifest) -> CheckpointCompleted:
        channels = [channel for phases in underway.phases for channel in phases.channels]
        return CheckpointCompleted(
            checkpoint_id=underway.checkpoint_id,
            kind=underway.kind,
            path=underway.location,
            end_to_end_ms=self._around.clock.monotonic_ms() - underway.triggered_ms,
            state_bytes=manifest.state_bytes,
            uploaded_bytes=sum(phases.uploaded_bytes for phases in underway.phases),
            buffered_records=sum(channel.buffered_records for channel in channels),
            buffered_bytes=sum(channel.buffered_bytes for channel in channels),
            source_records=underway.source_records,
            watermark_ms=min(underway.watermarks_ms, default=None),
            counters=counters_of(manifest),
        )


def _discarded_event(point: RetainedPoint) -> Event:
    if point.is_claimed:
        return ClaimedPointDiscarded(path=point.location)
    return CheckpointDiscarded(checkpoint_id=point.checkpoint_id)


def _format_of(request: TriggerRequest) -> SavepointFormat | None:
    return request.savepoint_format if request.kind is CheckpointKind.SAVEPOINT else None


def counters_of(manifest: Manifest) -> dict[str, int]:
    """Operator counters at the cut, summed over subtasks."""
    totals: dict[str, int] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for name, value in operator.counters.items():
                key = f"{operator.uid}.{name}"
                totals[key] = totals.get(key, 0) + value
    return totals


def source_records_of(manifest: Manifest) -> int:
    return sum(
        operator.counters.get("records_read", 0)
        for subtask in manifest.subtasks
        for operator in subtask.operators
    )
