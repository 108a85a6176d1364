"""Takes a checkpoint from its trigger to its barriers: prepares its location, informs every slot.

One checkpoint after the other, so that slots hear of them in the order of their ids, however long
the storage takes. Decides nothing: `trigger_desk` decides what may start.
Source: Flink, `CheckpointCoordinator.startTriggeringCheckpoint`.

Has sinks commit what belongs to a completed checkpoint, and watches until all have.
"""

from pipelines.domain.events import CheckpointCommitted, CheckpointTriggered, ZombieRefused
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.effects import Inject, SubtaskId
from pipelines.protocol.fencing import Stale
from pipelines.runtime.control import Committed
from pipelines.runtime.control import Inject as InjectMessage
from pipelines.runtime.master.attempt.attempt_host import AttemptHost
from pipelines.runtime.master.checkpoints.point_files import PointFiles, savepoint_format_of
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.checkpoints.underway import Underway
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.run_context import RunContext


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
        self._preparing: CheckpointId | None = None

    def is_preparing(self) -> bool:
        """Nothing else is triggered until the outcome is known, or the checkpoint is over."""
        return self._preparing is not None

    def begin(self, effect: Inject, timeout_ms: float) -> Underway:
        """The checkpoint is under way from now on; call `prepare` next."""
        context, request = self._context, effect.request
        now_ms = context.clock.monotonic_ms()
        underway = Underway(
            checkpoint_id=effect.checkpoint_id,
            request=request,
            location=self._files.location(request.kind, effect.checkpoint_id),
            triggered_ms=now_ms,
            expires_ms=now_ms + timeout_ms,
            trigger_wall_ms=context.clock.wall_ms(),
        )
        self._shared.on_triggered(effect.checkpoint_id)
        context.record.emit(
            CheckpointTriggered(
                checkpoint_id=effect.checkpoint_id,
                kind=request.kind,
                trigger_ms=underway.trigger_wall_ms,
                subtask_count=len(context.pipeline.graph.vertices) * context.spec.parallelism,
                request_id=request.request_id,
            )
        )
        return underway

    def prepare(self, underway: Underway) -> None:
        self._preparing = underway.checkpoint_id
        attempt = self._context.fence.current
        self._files.prepare(attempt, underway.checkpoint_id, underway.location)

    def on_prepared(self, underway: Underway, attempt: AttemptHost | None) -> None:
        """Starts its barriers; None: the attempt has ended meanwhile."""
        self.on_over(underway.checkpoint_id)
        if attempt is not None:
            attempt.broadcast(self._message(underway))

    def on_over(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint is prepared or over: the next one may start, whatever becomes of it."""
        if self._preparing == checkpoint_id:
            self._preparing = None

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
    """Follows one attempt at a time: the restored one commits what an older one had not."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.newest_ms: int | None = None  # wall time of the newest that all sinks have committed
        self._sinks: frozenset[SubtaskId] = frozenset()
        self._waiting: dict[CheckpointId, set[SubtaskId]] = {}

    def on_running(self) -> None:
        shapes, parallelism = self._context.pipeline.graph.shape(), self._context.spec.parallelism
        sinks = [shape.uid for shape in shapes if shape.is_sink]
        self._sinks = frozenset(SubtaskId(uid, i) for uid in sinks for i in range(parallelism))
        self._waiting = {}

    def on_completed(self, checkpoint_id: CheckpointId, attempt: AttemptHost | None) -> None:
        """Have sinks commit it; None: the attempt ended meanwhile, and the restored one commits."""
        self._waiting[checkpoint_id] = set(self._sinks)
        if attempt is None:
            return
        match self._context.fence.permit_commit(attempt.attempt, checkpoint_id):
            case Stale(stale):
                self._context.record.emit(ZombieRefused(zombie_attempt=stale, what="a commit"))
            case permit:
                attempt.announce_completed(permit)

    def on_committed(self, message: Committed) -> None:
        """Emits `CheckpointCommitted`, once, when the last sink has committed."""
        waiting = self._waiting.get(message.checkpoint_id)
        if waiting is None:
            return
        waiting.discard(SubtaskId(message.vertex, message.subtask))
        if not waiting:
            del self._waiting[message.checkpoint_id]
            self.newest_ms = self._context.clock.wall_ms()
            self._context.record.emit(CheckpointCommitted(checkpoint_id=message.checkpoint_id))
