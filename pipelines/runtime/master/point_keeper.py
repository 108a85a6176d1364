"""Keeps the points that retention keeps, and has the others deleted and reported."""

from functools import partial

from pipelines.domain.events import (
    CheckpointDiscarded,
    ClaimedPointDiscarded,
    RestorePointRefused,
)
from pipelines.domain.settings import CheckpointStorage, ExternalizedRetention
from pipelines.domain.status import JobStatus
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.checkpoint_surroundings import CheckpointSurroundings
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.point_files import PointFiles
from pipelines.runtime.master.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.underway import Underway


class PointKeeper:
    def __init__(
        self,
        surroundings: CheckpointSurroundings,
        points: RetainedPoints,
        files: PointFiles,
        shared: SharedFilesHost,
        damage: DamageMemory,
    ) -> None:
        self._around = surroundings
        self._points = points
        self._files = files
        self._shared = shared
        self._damage = damage

    def on_completed(self, underway: Underway) -> None:
        """Marks the point also for damage that was found while its manifest was being written."""
        point = underway.point
        damage = self._damage.on_completed(point)
        if damage is not None:
            self._around.emit(RestorePointRefused(path=point.location, message=damage))
        self._give_up(self._points.on_completed(point, damage))

    def on_run_ended(self, status: JobStatus) -> None:
        """After this the run has only the points that its retention leaves."""
        policy = self._around.settings.retention
        if self._around.settings.checkpoint_storage is CheckpointStorage.JOBMANAGER:
            policy = ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS  # memory ends with us
        self._give_up(self._points.on_run_ended(status, policy))

    def _give_up(self, points: list[RetainedPoint]) -> None:
        """A checkpoint of the run is no point any more; a sweep deletes what may be left of it. A
        claimed point belongs to another run, whose page shows its deletion once it is gone."""
        attempt = self._around.fence.current
        for point in points:
            if point.is_claimed:
                self._files.discard_retained(attempt, point, partial(self._say_gone, point))
                continue
            self._files.discard_retained(attempt, point, self._shared.on_discarded(attempt, point))
            self._around.emit(CheckpointDiscarded(checkpoint_id=point.checkpoint_id))

    def _say_gone(self, point: RetainedPoint) -> None:
        """From any thread."""
        self._around.emit(ClaimedPointDiscarded(path=point.location))
