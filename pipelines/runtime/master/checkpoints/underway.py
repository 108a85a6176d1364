"""One checkpoint as its host sees it: the coordinator's own object, and the facts outside it.

Collects the reports of the subtasks until the checkpoint ends, and sums them up for the journal.
Every part of the driver that follows checkpoints keeps its facts here, and holds only collections
of these objects. Listeners of the host implement `CheckpointListener`.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from pipelines.domain.checkpoint_failures import SubtaskPhases
from pipelines.domain.errors import check
from pipelines.domain.events import CheckpointCompleted, CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import CheckpointKind
from pipelines.points.contents import counters_of
from pipelines.protocol.coordination import Checkpoint
from pipelines.protocol.effects import AbortCheckpoint, SubtaskId
from pipelines.protocol.retention import RetainedPoint
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Acknowledged
from pipelines.runtime.master.checkpoints.shared_file_deletion import shared_names
from pipelines.runtime.master.job_events import ManifestWritten


@dataclass(slots=True, kw_only=True)
class Underway:
    """A checkpoint under way; `checkpoint` has its phase.

    Times are monotonic, except `trigger_wall_ms`.
    """

    checkpoint: Checkpoint
    location: str
    triggered_ms: float
    expires_ms: float
    trigger_wall_ms: int
    phases: list[SubtaskPhases] = field(default_factory=list)
    source_records: int = 0
    watermarks_ms: list[int] = field(default_factory=list)
    manifest: Manifest | None = None
    publication: Future[ManifestWritten] | None = None
    is_ours: bool = True  # False: another driver has published under this id
    is_prepared: bool = False  # its location is ready, and its barriers have started
    shared_names: set[str] = field(default_factory=set)  # of shared files that were acknowledged
    sinks_left: set[SubtaskId] = field(default_factory=set)  # have not committed it yet

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.checkpoint.checkpoint_id

    @property
    def request(self) -> TriggerRequest:
        return self.checkpoint.request

    @property
    def kind(self) -> CheckpointKind:
        return self.request.kind

    @property
    def point(self) -> RetainedPoint:
        """The recovery point that this checkpoint becomes when it completes."""
        is_savepoint = self.kind is CheckpointKind.SAVEPOINT
        return RetainedPoint(self.checkpoint_id, self.location, is_savepoint)

    def on_acknowledged(self, message: Acknowledged, now_ms: float) -> SubtaskPhases:
        """Returns the subtask's phases; `acknowledged_ms` is by the coordinator's clock."""
        elapsed_ms = now_ms - self.triggered_ms
        phases = msgspec.structs.replace(message.phases, acknowledged_ms=elapsed_ms)
        self.phases.append(phases)
        self.shared_names.update(shared_names([message.snapshot]))
        self.source_records += message.source_records
        if message.watermark_ms is not None:
            self.watermarks_ms.append(message.watermark_ms)
        return phases

    def completed_event(self, manifest: Manifest, now_ms: float) -> CheckpointCompleted:
        is_own = manifest.checkpoint_id == self.checkpoint_id
        check(is_own, "a checkpoint completes with its own manifest", own=self.checkpoint_id)
        channels = [channel for phases in self.phases for channel in phases.channels]
        return CheckpointCompleted(
            checkpoint_id=self.checkpoint_id,
            kind=self.kind,
            path=self.location,
            end_to_end_ms=now_ms - self.triggered_ms,
            state_bytes=manifest.state_bytes,
            uploaded_bytes=sum(phases.uploaded_bytes for phases in self.phases),
            buffered_records=sum(channel.buffered_records for channel in channels),
            buffered_bytes=sum(channel.buffered_bytes for channel in channels),
            persisted_bytes=sum(phases.persisted_bytes for phases in self.phases),
            source_records=self.source_records,
            watermark_ms=min(self.watermarks_ms, default=None),
            counters=counters_of(manifest),
        )

    def failed_event(self, aborted: AbortCheckpoint) -> CheckpointFailed:
        return CheckpointFailed(
            checkpoint_id=self.checkpoint_id,
            reason=aborted.reason,
            message=aborted.message,
            request_id=self.request.request_id,
        )


class CheckpointListener:
    """Is called with the outcome of each checkpoint, on the job master's thread."""

    def checkpoint_publishing(self, request: TriggerRequest, path: str) -> None:
        """All subtasks have acknowledged; the manifest is written next."""
        raise NotImplementedError

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        raise NotImplementedError

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        raise NotImplementedError
