"""Uploads, off the subtask's thread, what it gathered for a checkpoint, and acknowledges it.

Between its cut and its upload a snapshot gathers its records in flight; an aligned snapshot has
nothing to wait for. Decides nothing: a failure declines the checkpoint and has no other effect.

Source: Flink, `ChannelStateWriter` and its futures.
"""

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pipelines.channels.channel import Output
from pipelines.domain.checkpoint_failures import ChannelAlignment, SubtaskPhases
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.errors import check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords, overtaken_on
from pipelines.runtime.subtask.snapshots.snapshotting import (
    SnapshotWriter,
    SubtaskCut,
    WrittenSnapshot,
    snapshot_bytes,
)
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter


@dataclass(slots=True, kw_only=True)
class Gathering:
    """`waiting_outputs` still hold the barrier back; at `due_ms` it overtakes there, too."""

    barrier: Barrier
    cut: SubtaskCut
    start_delay_ms: float
    sync_ms: float
    cut_ms: float  # monotonic, the end of the cut
    in_flight: list[InFlightRecords]
    waiting_outputs: list[Output] = field(default_factory=list)
    due_ms: float | None = None
    awaits_inputs: bool = True
    alignment_ms: float = 0.0
    channels: list[ChannelAlignment] = field(default_factory=list)
    is_unaligned: bool = False
    is_over: bool = False  # no upload is to begin; an upload thread reads it

    @property
    def is_complete(self) -> bool:
        return not self.awaits_inputs and not self.waiting_outputs

    def on_inputs(
        self,
        alignment_ms: float,
        channels: Iterable[ChannelAlignment],
        recorded: Iterable[InFlightRecords] = (),
    ) -> None:
        """Every barrier has arrived."""
        check(self.awaits_inputs, "inputs are complete once", of=self.barrier.checkpoint_id)
        self.alignment_ms, self.channels = alignment_ms, list(channels)
        self.in_flight = [*self.in_flight, *recorded]
        self.awaits_inputs = False

    def look_at_outputs(self, now_ms: float) -> None:
        """Drops outputs that have passed the barrier on; overtakes at the others if time is up."""
        checkpoint_id = self.barrier.checkpoint_id
        self.waiting_outputs = [o for o in self.waiting_outputs if o.holds_barrier(checkpoint_id)]
        if self.due_ms is not None and now_ms >= self.due_ms:
            self._overtake()

    def _overtake(self) -> None:
        for output in self.waiting_outputs:
            self.in_flight += overtaken_on(output, self.barrier)
            self.is_unaligned = True
        self.waiting_outputs = []


class SnapshotUpload:
    """The uploads of one subtask, one after the other or several at once.

    Guarantee: no upload begins once the subtask's thread has heard that its checkpoint is over.
    """

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
        self._started: dict[CheckpointId, Gathering] = {}  # of checkpoints that are not over

    def start(self, gathered: Gathering) -> None:
        checkpoint_id = gathered.barrier.checkpoint_id
        check(gathered.is_complete, "a snapshot is complete before its upload", of=checkpoint_id)
        is_new = checkpoint_id not in self._started
        check(is_new, "a subtask uploads a checkpoint once", checkpoint_id=checkpoint_id)
        self._started[checkpoint_id] = gathered
        self._threads.submit(self._upload, gathered)

    def on_over(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint has completed or aborted."""
        gathered = self._started.pop(checkpoint_id, None)
        if gathered is not None:
            gathered.is_over = True

    def _upload(self, gathered: Gathering) -> None:
        """Runs on an upload thread."""
        try:
            self._try_upload(gathered)
        except Exception as error:  # otherwise no one would see an upload thread's error
            self._reporter.declined(self._place, gathered.barrier.checkpoint_id, error)

    def _try_upload(self, gathered: Gathering) -> None:
        barrier, checkpoint_id = gathered.barrier, gathered.barrier.checkpoint_id
        self._reporter.reach(FaultPoint.UPLOADING)
        if gathered.is_over:
            return  # the coordinator no longer waits for it
        written = self._writer.write(
            gathered.cut,
            checkpoint_id,
            barrier.location,
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
