"""Takes a checkpoint from its trigger to its barriers: prepares its location, informs every slot.

One checkpoint after the other, so that slots hear of them in the order of their ids, however long
the storage takes. Decides nothing: `trigger_desk` decides what may start.
Source: Flink, `CheckpointCoordinator.startTriggeringCheckpoint`.
"""

from pipelines.domain.events import CheckpointTriggered
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.checkpoint_effects import Inject
from pipelines.runtime.control import Inject as InjectMessage
from pipelines.runtime.master.attempt_host import AttemptHost
from pipelines.runtime.master.checkpoint_surroundings import CheckpointSurroundings
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.manifests import savepoint_format_of
from pipelines.runtime.master.point_files import PointFiles
from pipelines.runtime.master.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.underway import Underway


class BarrierInjection:
    def __init__(
        self,
        surroundings: CheckpointSurroundings,
        files: PointFiles,
        shared: SharedFilesHost,
        damage: DamageMemory,
    ) -> None:
        self._around = surroundings
        self._files = files
        self._shared = shared
        self._damage = damage
        self._preparing: CheckpointId | None = None

    def is_preparing(self) -> bool:
        """Nothing else is triggered until the outcome is known, or the checkpoint is over."""
        return self._preparing is not None

    def begin(self, effect: Inject, timeout_ms: float) -> Underway:
        """The checkpoint is under way from now on; call `prepare` next."""
        around, request = self._around, effect.request
        now_ms = around.clock.monotonic_ms()
        underway = Underway(
            effect.checkpoint_id,
            request,
            self._files.location(request.kind, effect.checkpoint_id),
            triggered_ms=now_ms,
            expires_ms=now_ms + timeout_ms,
            trigger_wall_ms=around.clock.wall_ms(),
        )
        self._shared.on_triggered(effect.checkpoint_id)
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

    def prepare(self, underway: Underway) -> None:
        self._preparing = underway.checkpoint_id
        attempt = self._around.fence.current
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
