"""Uploads, off the subtask's thread, what it gathered for a checkpoint, and acknowledges it.

Decides nothing: a failure declines the checkpoint and has no other effect.
"""

from concurrent.futures import Executor

from pipelines.domain.clock import Clock
from pipelines.domain.faults import FaultPoint
from pipelines.domain.phases import SubtaskPhases
from pipelines.runtime.subtask.chain_place import ChainPlace
from pipelines.runtime.subtask.gathering import Gathering
from pipelines.runtime.subtask.snapshotting import SnapshotWriter, WrittenSnapshot, snapshot_bytes
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter


class SnapshotUpload:
    """The uploads of one subtask, one after the other or several at once."""

    def __init__(
        self,
        place: ChainPlace,
        writer: SnapshotWriter,
        threads: Executor,
        reporter: SubtaskReporter,
        clock: Clock,
    ) -> None:
        self._place = place
        self._writer = writer
        self._threads = threads
        self._reporter = reporter
        self._clock = clock

    def start(self, gathered: Gathering) -> None:
        """Starts as soon as the master has said where to upload."""
        self._reporter.once_heard_of(
            gathered.barrier.checkpoint_id, lambda: self._threads.submit(self._upload, gathered)
        )

    def _upload(self, gathered: Gathering) -> None:
        """Runs on an upload thread."""
        try:
            self._try_upload(gathered)
        except Exception as error:  # otherwise no one would see an upload thread's error
            self._reporter.declined(self._place, gathered.barrier.checkpoint_id, error)

    def _try_upload(self, gathered: Gathering) -> None:
        barrier, checkpoint_id = gathered.barrier, gathered.barrier.checkpoint_id
        self._reporter.reach(FaultPoint.UPLOADING)
        location = self._reporter.location_of(checkpoint_id)
        if location is None:
            return  # no one waits for it any more
        written = self._writer.write(
            gathered.cut,
            checkpoint_id,
            location,
            open_format=barrier.is_savepoint and not barrier.is_native,
            in_flight=gathered.in_flight,
        )
        self._reporter.reach(FaultPoint.UPLOADED)
        phases = self._phases(gathered, written)
        self._reporter.acknowledged(checkpoint_id, written.snapshot, phases)

    def _phases(self, gathered: Gathering, written: WrittenSnapshot) -> SubtaskPhases:
        return SubtaskPhases(
            vertex=self._place.vertex.uid,
            subtask=self._place.subtask,
            start_delay_ms=gathered.start_delay_ms,
            alignment_ms=gathered.alignment_ms,
            sync_ms=gathered.sync_ms,
            async_ms=self._clock.monotonic_ms() - gathered.cut_ms,
            acknowledged_ms=0.0,  # the coordinator fills this in, on its own clock
            state_bytes=snapshot_bytes(written.snapshot),
            uploaded_bytes=written.uploaded_bytes,
            is_unaligned=gathered.is_unaligned,
            persisted_bytes=written.snapshot.in_flight_bytes,
            channels=gathered.channels,
        )
