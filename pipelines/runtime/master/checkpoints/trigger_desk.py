"""Takes a checkpoint from its request to its barriers, and has sinks commit once it has completed.

`TriggerDesk` hosts the decider: it starts the request whose turn it is, or refuses it before it
gets an id. `BarrierInjection` prepares the location and informs every slot. It takes one checkpoint
after the other, so that slots get them in the order of their ids, however long the storage takes.
`CommitWatch` watches until all sinks have committed. `checkpoint_host` calls all three.

Source: Flink, `CheckpointCoordinator.startTriggeringCheckpoint`.
"""

from collections.abc import Callable

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import check
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointTriggered,
    ZombieRefused,
)
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import CapAction, Settings
from pipelines.protocol.commit import Stale
from pipelines.protocol.coordination import Checkpoint
from pipelines.protocol.effects import SubtaskId
from pipelines.protocol.triggering import (
    PERIODIC,
    Refuse,
    Start,
    TriggerDecider,
    TriggerRequest,
    TriggerRules,
    WaitUntil,
)
from pipelines.runtime.control import Committed
from pipelines.runtime.control import Inject as InjectMessage
from pipelines.runtime.master.attempt.attempt_host import AttemptHost
from pipelines.runtime.master.checkpoints.point_files import PointFiles, savepoint_format_of
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.checkpoints.underway import CheckpointListener, Underway
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.run_context import RunContext


class TriggerDesk:
    def __init__(self, context: RunContext, listener: CheckpointListener) -> None:
        self._context = context
        self._listener = listener
        self._settings = context.settings
        self._decider = TriggerDecider(rules=_rules(self._settings))
        self._refusal_shown = False  # of a periodic request, in this attempt

    def on_running(self) -> None:
        self._refusal_shown = False
        self._decider.on_running(self._context.clock.monotonic_ms(), self._first_delay_ms())

    def on_stopped(self) -> None:
        self._decider.on_stopped()

    def on_settings(self, settings: Settings) -> None:
        self._settings = settings
        self._decider.on_rules(_rules(settings), self._context.clock.monotonic_ms())

    def on_source_finished(self) -> None:
        self._decider.on_source_finished()

    def on_sources_ended(self) -> None:
        self._decider.on_sources_ended()

    def on_reservation_wanted(self) -> None:
        self._decider.on_reservation_wanted(self._context.clock.monotonic_ms())

    def on_request(self, request: TriggerRequest) -> bool:
        """Returns False if too many requests are waiting."""
        is_queued = self._decider.on_request(request)
        if not is_queued:
            self._show_refusal(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
        return is_queued

    def start_what_is_due(
        self, now_ms: float, start: Callable[[TriggerRequest], None], is_busy: Callable[[], bool]
    ) -> float | None:
        """Returns when the next request may start, or None if that depends on another event.

        Nothing starts while `is_busy` says that the last checkpoint is still being triggered.
        """
        while not is_busy():
            match self._decider.next(now_ms):
                case Start(request):
                    self._decider.on_started(request, now_ms)
                    start(request)
                case Refuse(request, reason):
                    self._decider.on_refused(request, now_ms)
                    self._refuse(request, reason)
                case WaitUntil(monotonic_ms):
                    return monotonic_ms
        return None

    def on_completed(self, request: TriggerRequest) -> None:
        self._decider.on_completed(request, self._context.clock.monotonic_ms())
        if request.stops_run:
            self._decider.on_stopped()  # nothing follows the checkpoint that ends the run

    def on_aborted(self, request: TriggerRequest) -> None:
        self._decider.on_aborted(request, self._context.clock.monotonic_ms())

    def _refuse(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        """A periodic request is refused at every interval; one report per attempt is enough."""
        if request is not PERIODIC or not self._refusal_shown:
            self._show_refusal(request, reason)
        self._refusal_shown = self._refusal_shown or request is PERIODIC
        self._listener.checkpoint_aborted(request, reason)

    def _show_refusal(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        self._context.record.emit(
            CheckpointFailed(
                checkpoint_id=None, reason=reason, message="", request_id=request.request_id
            )
        )

    def _first_delay_ms(self) -> float | None:
        interval_ms = self._settings.checkpointing.interval_ms
        if interval_ms is None:
            return None
        pause_ms = min(self._settings.checkpointing.min_pause_ms, interval_ms)
        return self._context.draw(pause_ms, interval_ms)


def _rules(settings: Settings) -> TriggerRules:
    """Makes savepoints wait if barriers may overtake records: only one checkpoint at a time can
    store records in flight."""
    checkpointing, barriers = settings.checkpointing, settings.barriers
    may_overtake = barriers.unaligned or barriers.cap_action is CapAction.UNALIGNED
    return TriggerRules(
        interval_ms=checkpointing.interval_ms,
        min_pause_ms=checkpointing.min_pause_ms,
        max_concurrent=checkpointing.max_concurrent,
        forces_savepoints=not may_overtake,
        allows_finished_sources=checkpointing.allows_finished_sources,
    )


class BarrierInjection:
    def __init__(
        self,
        context: RunContext,
        files: PointFiles,
        shared: SharedFilesHost,
        damage: DamageMemory,
    ) -> None:
        self._context = context
        self._files = files
        self._shared = shared
        self._damage = damage

    def begin(self, checkpoint: Checkpoint, timeout_ms: float) -> Underway:
        """The checkpoint is under way from now on; call `prepare` next."""
        context, request = self._context, checkpoint.request
        checkpoint_id = checkpoint.checkpoint_id
        now_ms = context.clock.monotonic_ms()
        underway = Underway(
            checkpoint=checkpoint,
            location=self._files.location(request.kind, checkpoint_id),
            triggered_ms=now_ms,
            expires_ms=now_ms + timeout_ms,
            trigger_wall_ms=context.clock.wall_ms(),
        )
        self._shared.on_triggered(checkpoint_id)
        context.record.emit(
            CheckpointTriggered(
                checkpoint_id=checkpoint_id,
                kind=request.kind,
                trigger_ms=underway.trigger_wall_ms,
                subtask_count=sum(1 for _ in context.subtasks()),
                request_id=request.request_id,
            )
        )
        return underway

    def prepare(self, underway: Underway) -> None:
        attempt = self._context.fence.current
        self._files.prepare(attempt, underway.checkpoint_id, underway.location)

    def on_prepared(self, underway: Underway, attempt: AttemptHost | None) -> None:
        """Starts the checkpoint's barriers, unless the attempt has ended meanwhile (None)."""
        barrier_of = underway.checkpoint_id
        check(not underway.is_prepared, "barriers start once", checkpoint_id=barrier_of)
        underway.is_prepared = True
        if attempt is not None:
            attempt.broadcast(self._message(underway))

    def _message(self, underway: Underway) -> InjectMessage:
        request = underway.request
        return InjectMessage(
            checkpoint_id=underway.checkpoint_id,
            trigger_ms=underway.trigger_wall_ms,
            location=underway.location,
            savepoint_format=savepoint_format_of(request),
            is_final=request.stops_run,
            drains=request.drains,
            confirmed_id=self._damage.confirmed_id(),
        )


class CommitWatch:
    """Follows the commits of one attempt: a restored attempt commits what the older one had not."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.newest_ms: int | None = None  # wall time at which all sinks had last committed
        self._sinks: frozenset[SubtaskId] = frozenset()
        self._waiting: dict[CheckpointId, Underway] = {}

    def on_running(self) -> None:
        sinks = {shape.uid for shape in self._context.pipeline.graph.shape() if shape.is_sink}
        every = self._context.subtasks()
        self._sinks = frozenset(subtask for subtask in every if subtask.vertex in sinks)
        self._waiting = {}

    def on_completed(self, underway: Underway, attempt: AttemptHost | None) -> None:
        """Have sinks commit it. If `attempt` is None, the attempt has ended meanwhile, and the next
        one commits."""
        checkpoint_id = underway.checkpoint_id
        is_new = checkpoint_id not in self._waiting
        check(is_new, "a checkpoint completes once", checkpoint_id=checkpoint_id)
        underway.sinks_left = set(self._sinks)
        if self._sinks:
            self._waiting[checkpoint_id] = underway
        if attempt is None:
            return
        match self._context.fence.permit_commit(attempt.attempt, checkpoint_id):
            case Stale(stale):
                self._context.record.emit(ZombieRefused(zombie_attempt=stale, what="a commit"))
            case permit:
                attempt.announce_completed(permit)

    def on_committed(self, message: Committed) -> None:
        """Emits `CheckpointCommitted` once, when the last sink has committed."""
        underway = self._waiting.get(message.checkpoint_id)
        if underway is None:
            return
        underway.sinks_left.discard(SubtaskId(message.vertex, message.subtask))
        if not underway.sinks_left:
            del self._waiting[message.checkpoint_id]
            self.newest_ms = self._context.clock.wall_ms()
            self._context.record.emit(CheckpointCommitted(checkpoint_id=message.checkpoint_id))
