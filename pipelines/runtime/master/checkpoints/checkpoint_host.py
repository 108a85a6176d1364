"""Carries out what the coordinator machines decide: barriers, manifests, retention, answers.

Runs on the job master's thread. `point_files` writes and deletes files on an executor, and reports
the outcome of a manifest as an event. Decides nothing itself.
"""

from collections.abc import Collection
from concurrent.futures import Future

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import check
from pipelines.domain.events import SubtaskAcknowledged
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.settings import Settings
from pipelines.domain.status import JobStatus
from pipelines.protocol.coordination import CheckpointCoordinator
from pipelines.protocol.effects import (
    AbortCheckpoint,
    Complete,
    CoordinationEffect,
    DiscardLate,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.retention import RetainedPoints
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Aborted, Acknowledged, Committed, Declined
from pipelines.runtime.master.attempt.attempt_host import AttemptHost
from pipelines.runtime.master.checkpoints.point_files import PointFiles, PointKeeper, manifest_of
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.checkpoints.trigger_desk import (
    BarrierInjection,
    CommitWatch,
    TriggerDesk,
)
from pipelines.runtime.master.checkpoints.underway import CheckpointListener, Underway
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.job_events import (
    FilesMissing,
    LocationPrepared,
    ManifestWritten,
    TooManyFailedCheckpoints,
)
from pipelines.runtime.master.output.run_ledger import RunLedger
from pipelines.runtime.master.run_context import RunContext
from pipelines.storage.store import Publication


class CheckpointHost:
    def __init__(
        self,
        context: RunContext,
        points: RetainedPoints,
        first_id: CheckpointId,
        listener: CheckpointListener,
        damaged_files: Collection[str] = (),
        given_up: Collection[str] = (),
    ) -> None:
        """`damaged_files`: the damaged files that earlier drivers of the run remembered.
        `given_up`: locations of points that they have given up."""
        self._context = context
        self._listener = listener
        self._settings = context.settings
        self.points = points
        self.ancestors: list[tuple[RunId, CheckpointId]] = []
        self.last_completed_ms: int | None = None
        self.triggers = TriggerDesk(context, listener)
        self._coordinator = CheckpointCoordinator(
            first_id=first_id, tolerable_failures=self._settings.checkpointing.tolerable_failures
        )
        self._files = PointFiles(context, given_up)
        self._shared = SharedFilesHost(
            context.store,
            context.places.checkpoints,
            context.executor,
            context.lease.is_current,
            points.every_newest_first(),
        )
        self.damage = DamageMemory(points, self._shared, context.record.emit, damaged_files)
        self._keeper = PointKeeper(context, points, self._files, self._shared, self.damage)
        self._commits = CommitWatch(context)
        self.ledger = RunLedger(context.record.emit)
        self._injection = BarrierInjection(context, self._files, self._shared, self.damage)
        self._attempt: AttemptHost | None = None
        self._underway: dict[CheckpointId, Underway] = {}  # oldest first

    @property
    def last_committed_ms(self) -> int | None:
        return self._commits.newest_ms

    @property
    def is_publishing(self) -> bool:
        """True while a manifest is being written: its checkpoint may be complete already."""
        return self._writing() is not None

    # Called by the job master.

    def on_running(self, attempt: AttemptHost) -> None:
        """All slots run: checkpoints may be triggered."""
        check(self._attempt is None, "one attempt runs at a time", attempt=attempt.attempt)
        ids = list(self._underway)
        check(not ids, "an attempt starts without a checkpoint under way", ids=ids)
        self._attempt = attempt
        self._commits.on_running()
        self._coordinator.on_running(self._context.subtasks())
        self._files.sweep(attempt.attempt, self._coordinator.next_id)
        self._shared.sweep(attempt.attempt)
        self.triggers.on_running()

    def delete_given_up(self) -> None:
        """Deletes the given-up points. Call before the output that they name is rolled back.

        Blocks. Raises Retryable.
        """
        self._files.delete_given_up()

    def on_stopped(
        self, reason: CheckpointFailureReason, why: str, failed: Collection[SubtaskId] = ()
    ) -> None:
        """The attempt is over, because `failed` were lost or for another `reason`.

        Waits for a manifest that is being written, because that may complete a point.
        """
        while (writing := self._writing()) is not None:
            underway, publication = writing
            said = publication.result()  # the posted copy of it will have no effect
            self.on_manifest(self._files.read_back(underway, said))
        self._attempt = None
        self._carry_out(self._coordinator.on_stopped(reason, why, failed))
        ids = list(self._underway)
        check(not ids, "checkpoints under way end with their attempt", ids=ids)
        self.triggers.on_stopped()

    def on_settings(self, settings: Settings) -> None:
        """Checkpoints under way keep the timeout that they started with."""
        self._settings = settings
        self._coordinator.tolerate(settings.checkpointing.tolerable_failures)
        self.triggers.on_settings(settings)

    def on_run_ended(self, status: JobStatus) -> None:
        """Sweeps: nothing else would delete the files that a killed slot had begun to write."""
        attempt = self._context.fence.current
        self._keeper.on_run_ended(status)
        self._files.sweep(attempt, self._coordinator.next_id)
        self._shared.sweep(attempt)

    def on_time(self) -> float | None:
        """Expires late checkpoints and starts due ones; returns when to call again, monotonic."""
        now_ms = self._context.clock.monotonic_ms()
        for late in [u for u in self._underway.values() if now_ms >= u.expires_ms]:
            self._context.last.note(f"checkpoint {late.checkpoint_id} has run out of time")
            self._carry_out(self._coordinator.on_expired(late.checkpoint_id))
        next_ms = self.triggers.start_what_is_due(now_ms, self._start, self._is_preparing)
        dues = [u.expires_ms for u in self._underway.values() if u.publication is None]
        return min(dues if next_ms is None else [*dues, next_ms], default=None)

    def on_prepared(self, event: LocationPrepared) -> None:
        underway = self._underway.get(event.checkpoint_id)
        if underway is None:
            return
        if event.reason is None:
            self._injection.on_prepared(underway, self._attempt)
            return
        effects = self._coordinator.on_untriggered(event.checkpoint_id, event.reason, event.why)
        self._carry_out(effects)

    def on_acknowledged(self, message: Acknowledged) -> None:
        underway = self._underway.get(message.checkpoint_id)
        if underway is not None:
            phases = underway.on_acknowledged(message, self._context.clock.monotonic_ms())
            event = SubtaskAcknowledged(checkpoint_id=message.checkpoint_id, phases=phases)
            self._context.record.emit(event)
        else:
            self._shared.on_acknowledged_late(self._context.fence.current, message.snapshot)
        self._carry_out(self._coordinator.on_acknowledged(message.checkpoint_id, message.snapshot))

    def on_declined(self, message: Declined) -> None:
        why = f"{message.vertex}[{message.subtask}]: {message.message}"
        self._carry_out(self._coordinator.on_declined(message.checkpoint_id, message.reason, why))

    def on_committed(self, message: Committed) -> None:
        self._commits.on_committed(message)

    def on_manifest(self, written: ManifestWritten) -> None:
        if isinstance(written.outcome, FilesMissing):
            self.damage.on_missing(written.outcome.damages)
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
            case FilesMissing(damages):
                effects = self._coordinator.on_damaged(written.checkpoint_id, damages[0].problem)
            case str(why):
                effects = self._coordinator.on_unpublished(written.checkpoint_id, why)
        self._carry_out(effects)

    # Decided by the machines.

    def _is_preparing(self) -> bool:
        """Returns True while a location is being prepared: until then nothing else is triggered."""
        return any(not underway.is_prepared for underway in self._underway.values())

    def _start(self, request: TriggerRequest) -> None:
        self._context.last.note(f"checkpoint {self._coordinator.next_id} is triggered")
        self._carry_out(self._coordinator.on_trigger(request))

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
                    self._files.discard(self._context.fence.current, location)
                case FailAttempt(message):
                    attempt = self._context.fence.current
                    self._context.post(TooManyFailedCheckpoints(attempt, message))

    def _inject(self, effect: Inject) -> None:
        check(not self._is_preparing(), "one location is prepared at a time")
        checkpoint = self._coordinator.pending(effect.checkpoint_id)
        underway = self._injection.begin(checkpoint, self._settings.checkpointing.timeout_ms)
        self._underway[effect.checkpoint_id] = underway
        self._injection.prepare(underway)

    def _finalize(self, effect: Finalize) -> None:
        underway, attempt = self._underway[effect.checkpoint_id], self._attempt
        if attempt is None:
            return
        manifest = manifest_of(effect, underway, self._context, attempt.attempt, self.ancestors)
        if (why := self.damage.problem_of(manifest)) is not None:
            self._carry_out(self._coordinator.on_damaged(effect.checkpoint_id, why))
            return
        underway.manifest = manifest
        self._listener.checkpoint_publishing(effect.request, underway.location)
        underway.publication = self._files.publish(attempt.attempt, underway.location, manifest)

    def _writing(self) -> tuple[Underway, Future[ManifestWritten]] | None:
        """Returns the checkpoint whose manifest is being written, with its publication."""
        every = ((u, u.publication) for u in self._underway.values())
        return next(((u, written) for u, written in every if written is not None), None)

    def _complete(self, effect: Complete) -> None:
        context = self._context
        underway = self._underway.pop(effect.checkpoint_id)
        now_ms = context.clock.monotonic_ms()
        self.triggers.on_completed(effect.request)
        if underway.manifest is None:
            return
        self.last_completed_ms = context.clock.wall_ms()
        context.record.emit(underway.completed_event(underway.manifest, now_ms))
        self._files.discard_given_up(context.fence.current)
        self._shared.on_completed(context.fence.current, underway.manifest)
        self._keeper.on_completed(underway)
        self.ledger.on_completed(underway.manifest)
        self._commits.on_completed(underway, self._attempt)
        self._listener.checkpoint_completed(effect.request, underway.location)

    def _abort(self, effect: AbortCheckpoint) -> None:
        underway = self._underway.pop(effect.checkpoint_id)
        self.triggers.on_aborted(effect.request)
        self._context.record.emit(underway.failed_event(effect))
        if self._attempt is not None:
            self._attempt.broadcast(Aborted(checkpoint_id=effect.checkpoint_id))
        self._shared.on_aborted(
            self._context.fence.current,
            effect.checkpoint_id,
            underway.shared_names,
            may_be_complete=underway.manifest is not None,
        )
        if underway.is_ours:
            self._files.discard(
                self._context.fence.current,
                underway.location,
                may_be_complete=underway.manifest is not None,
            )
        self._listener.checkpoint_aborted(effect.request, f"{effect.reason} {effect.message}")
