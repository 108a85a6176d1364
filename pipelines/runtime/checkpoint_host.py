"""Carries out what the coordinator machines decide: barriers, manifests, retention, answers.

Runs on the job master's thread; files are written and deleted by `point_files` on an executor, and
the outcome of a manifest comes back as an event. Decides nothing itself.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pipelines.domain.clock import Clock
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointTriggered,
    ClaimedPointDiscarded,
    Event,
    SubtaskAcknowledged,
    ZombieRefused,
)
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.operator_ids import operator_id
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunSpec
from pipelines.domain.settings import CheckpointStorage, ExternalizedRetention, Settings
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind, JobStatus, SavepointFormat
from pipelines.protocol.checkpoint_effects import (
    AbortCheckpoint,
    Complete,
    CoordinationEffect,
    DiscardLate,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.coordination import CheckpointCoordinator
from pipelines.protocol.fencing import AttemptFence, Stale
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.protocol.triggering import (
    PERIODIC,
    Refuse,
    Start,
    TriggerDecider,
    TriggerRequest,
    TriggerRules,
    WaitUntil,
)
from pipelines.runtime.attempt_host import AttemptHost
from pipelines.runtime.control import Aborted, Acknowledged, Committed, Declined
from pipelines.runtime.control import Inject as InjectMessage
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.job_events import JobEvent, ManifestWritten
from pipelines.runtime.point_files import PointFiles
from pipelines.runtime.underway import Underway
from pipelines.storage.store import CheckpointStore, Publication


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
    draw: Callable[[float, float], float]  # a number between two, for the phase of the schedule
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
        self._settings = surroundings.settings
        self.points = points
        self.ancestors: list[tuple[RunId, CheckpointId]] = []
        self.last_completed_ms: int | None = None
        self.last_committed_ms: int | None = None
        self._decider = TriggerDecider(_rules(self._settings))
        self._coordinator = CheckpointCoordinator(
            first_id=first_id, tolerable_failures=self._settings.tolerable_failed_checkpoints
        )
        self._files = PointFiles(
            surroundings.places,
            surroundings.store,
            surroundings.executor,
            surroundings.owns_run,
            surroundings.post,
            surroundings.faults,
        )
        self._attempt: AttemptHost | None = None
        self._underway: dict[CheckpointId, Underway] = {}  # oldest first
        self._uncommitted: dict[CheckpointId, set[SubtaskId]] = {}
        self._sink_subtasks: set[SubtaskId] = set()
        self._refusal_shown = False  # of a periodic one, in this attempt

    # What the job master passes on.

    def on_running(self, attempt: AttemptHost) -> None:
        """All slots run: checkpoints may be triggered."""
        self._attempt = attempt
        self._refusal_shown = False
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
        self._files.sweep(attempt.attempt, self._coordinator.next_id)
        self._decider.on_running(self._around.clock.monotonic_ms(), self._first_delay_ms())

    def on_stopped(self, reason: CheckpointFailureReason, why: str) -> None:
        """The attempt is over. A manifest on its way is waited for: it may make a point."""
        while (writing := self._writing()) is not None:
            if writing.publication is not None:
                writing.publication.result()  # posts ManifestWritten; its outcome is read below
            self.on_manifest(self._outcome_of(writing))
        self._attempt = None
        self._carry_out(self._coordinator.on_stopped(reason, why))
        self._decider.on_stopped()

    def on_request(self, request: TriggerRequest) -> bool:
        """False: too many are waiting."""
        is_queued = self._decider.on_request(request)
        if not is_queued:
            self._emit_refusal(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
        return is_queued

    def on_settings(self, settings: Settings) -> None:
        """Checkpoints that are under way keep the timeout that they started with."""
        self._settings = settings
        self._coordinator.tolerate(settings.tolerable_failed_checkpoints)
        self._decider.on_rules(_rules(settings), self._around.clock.monotonic_ms())

    def on_run_ended(self, status: JobStatus) -> None:
        """After this the run has only the points that its retention leaves."""
        policy = self._settings.retention
        if self._settings.checkpoint_storage is CheckpointStorage.JOBMANAGER:
            policy = ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS  # memory ends with us
        self._give_up(self.points.on_run_ended(status, policy))

    def on_source_finished(self) -> None:
        self._decider.on_source_finished()

    def on_sources_ended(self) -> None:
        self._decider.on_sources_ended()

    def on_time(self) -> float | None:
        """Expire what is late and start what is due; when to be called again, monotonic."""
        now_ms = self._around.clock.monotonic_ms()
        for late in [u for u in self._underway.values() if now_ms >= u.expires_ms]:
            self._carry_out(self._coordinator.on_expired(late.checkpoint_id))
        dues = [self._start_what_is_due(now_ms)]
        dues += [u.expires_ms for u in self._underway.values() if u.publication is None]
        return min((due for due in dues if due is not None), default=None)

    def on_acknowledged(self, message: Acknowledged) -> None:
        underway = self._underway.get(message.checkpoint_id)
        if underway is not None:
            phases = underway.on_acknowledged(message, self._around.clock.monotonic_ms())
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
        underway = self._underway.get(written.checkpoint_id)
        if underway is None or underway.publication is None:
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

    def _start_what_is_due(self, now_ms: float) -> float | None:
        """When something else may start (None: not before another event)."""
        while True:
            match self._decider.next(now_ms):
                case Start(request):
                    self._decider.on_started(request, now_ms)
                    self._carry_out(self._coordinator.on_trigger(request))
                case Refuse(request, reason):
                    self._decider.on_refused(request, now_ms)
                    self._refuse(request, reason)
                case WaitUntil(monotonic_ms):
                    return monotonic_ms

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
                case DiscardLate(checkpoint_id, request):
                    location = self._files.location(request.kind, checkpoint_id)
                    self._files.discard(self._around.fence.current, location)
                case FailAttempt(message):
                    self._listener.too_many_failures(message)

    def _refuse(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        """A periodic one is refused at every beat; saying so once an attempt is enough."""
        if request is not PERIODIC or not self._refusal_shown:
            self._emit_refusal(request, reason)
        self._refusal_shown = self._refusal_shown or request is PERIODIC
        self._listener.checkpoint_aborted(request, reason)

    def _emit_refusal(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        self._around.emit(
            CheckpointFailed(
                checkpoint_id=None, reason=reason, message="", request_id=request.request_id
            )
        )

    def _inject(self, effect: Inject) -> None:
        underway = self._begun(effect)
        if self._attempt is not None:
            self._attempt.broadcast(
                InjectMessage(
                    checkpoint_id=effect.checkpoint_id,
                    trigger_ms=underway.trigger_wall_ms,
                    location=underway.location,
                    savepoint_format=_format_of(effect.request),
                    is_final=effect.request.stops_run,
                )
            )

    def _begun(self, effect: Inject) -> Underway:
        around, request = self._around, effect.request
        now_ms = around.clock.monotonic_ms()
        underway = Underway(
            effect.checkpoint_id,
            request.kind,
            self._files.location(request.kind, effect.checkpoint_id),
            triggered_ms=now_ms,
            expires_ms=now_ms + self._settings.checkpoint_timeout_ms,
            trigger_wall_ms=around.clock.wall_ms(),
        )
        self._underway[effect.checkpoint_id] = underway
        around.emit(
            CheckpointTriggered(
                checkpoint_id=effect.checkpoint_id,
                kind=request.kind,
                trigger_ms=underway.trigger_wall_ms,
                subtask_count=len(around.graph.vertices) * around.spec.parallelism,
                request_id=request.request_id,
            )
        )
        return underway

    def _finalize(self, effect: Finalize) -> None:
        underway, attempt = self._underway[effect.checkpoint_id], self._attempt
        if attempt is None:
            return
        underway.manifest = self._manifest(effect, underway, attempt.attempt)
        underway.publication = self._files.publish(
            attempt.attempt, underway.location, underway.manifest
        )

    def _writing(self) -> Underway | None:
        """The one whose manifest is on its way."""
        return next((u for u in self._underway.values() if u.publication is not None), None)

    def _outcome_of(self, underway: Underway) -> ManifestWritten:
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
        around = self._around
        underway = self._underway.pop(effect.checkpoint_id)
        now_ms = around.clock.monotonic_ms()
        self._decider.on_ended(effect.request, now_ms)
        if underway.manifest is None:
            return
        self.last_completed_ms = around.clock.wall_ms()
        around.emit(underway.completed_event(underway.manifest, now_ms))
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
        underway = self._underway.pop(effect.checkpoint_id)
        self._decider.on_ended(effect.request, self._around.clock.monotonic_ms())
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
        if underway.is_ours:
            self._files.discard(self._around.fence.current, underway.location)
        self._listener.checkpoint_aborted(effect.request, f"{effect.reason} {effect.message}")

    def _retain(self, underway: Underway) -> None:
        point = RetainedPoint(
            underway.checkpoint_id, underway.location, underway.kind is CheckpointKind.SAVEPOINT
        )
        self._give_up(self.points.on_completed(point))

    def _give_up(self, points: list[RetainedPoint]) -> None:
        for point in points:
            self._files.discard(self._around.fence.current, point.location)
            self._around.emit(_discarded_event(point))

    def _manifest(self, effect: Finalize, underway: Underway, attempt: Attempt) -> Manifest:
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

    def _first_delay_ms(self) -> float | None:
        interval_ms = self._settings.checkpoint_interval_ms
        if interval_ms is None:
            return None
        pause_ms = min(self._settings.min_pause_ms, interval_ms)
        return self._around.draw(pause_ms, interval_ms)


def _discarded_event(point: RetainedPoint) -> Event:
    if point.is_claimed:
        return ClaimedPointDiscarded(path=point.location)
    return CheckpointDiscarded(checkpoint_id=point.checkpoint_id)


def _format_of(request: TriggerRequest) -> SavepointFormat | None:
    return request.savepoint_format if request.kind is CheckpointKind.SAVEPOINT else None


def _rules(settings: Settings) -> TriggerRules:
    return TriggerRules(
        interval_ms=settings.checkpoint_interval_ms,
        min_pause_ms=settings.min_pause_ms,
        max_concurrent=settings.max_concurrent_checkpoints,
        forces_savepoints=not settings.unaligned,
        allows_finished_sources=settings.allows_finished_sources,
    )
