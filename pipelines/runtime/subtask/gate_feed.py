"""Feeds a subtask from its input gate: records, event time, and barriers to its `GateAlignment`."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics, InputGate
from pipelines.channels.coalescing import Coalescing, Run
from pipelines.domain.elements import (
    MIN_WATERMARK_MS,
    Barrier,
    CancelCheckpoint,
    EndOfInput,
    Mark,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark, WatermarkMerger, newest_marks
from pipelines.runtime.subtask.gate_alignment import GateAlignment
from pipelines.runtime.subtask.snapshots.in_flight import Beginning, beginning
from pipelines.runtime.subtask.subtask import Subtask


class GateFeed:
    def __init__(
        self,
        gate: InputGate,
        coalescing: Coalescing,
        alignment: GateAlignment,
        restored_watermark_ms: int | None,
        in_flight: Iterable[tuple[int, pa.RecordBatch]] = (),
    ) -> None:
        gate.coalesce(coalescing)
        self._gate = gate
        self._alignment = alignment
        self._begin = beginning(in_flight, restored_watermark_ms)
        self._watermarks = WatermarkMerger(coalescing.inputs, restored_watermark_ms)

    @property
    def has_ended(self) -> bool:
        return not self._alignment.has_open_inputs

    @property
    def wait_ms(self) -> float:
        return self._alignment.wait_ms

    @property
    def due_ms(self) -> float | None:
        dues = (self._alignment.due_ms, self._gate.due_ms)
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def attend(self, subtask: Subtask) -> bool:
        return self._begin is None and self._alignment.attend(subtask)

    def advance(self, subtask: Subtask) -> bool:
        if self._begin is not None:
            self._begin = self._take_restored(self._begin, subtask)
            return True
        match self._gate.poll_run():
            case None:
                return False
            case Run() as run:
                self._on_run(run, subtask)
            case (channel, mark):
                self._on_mark(channel, mark, subtask)
        return True

    def drain(self, subtask: Subtask) -> None:
        raise InvariantViolated(f"event time ends at sources only, not at {subtask.name}")

    def on_injected(self, barrier: Barrier, subtask: Subtask) -> None:
        raise InvariantViolated(f"barriers are injected at sources only, not at {subtask.name}")

    def on_completed(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        pass

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        self._alignment.on_aborted(checkpoint_id, subtask)

    def positions(self) -> Json:
        return None

    def records_beyond_positions(self) -> int:
        return 0

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        return None

    def replayed(self) -> Json:
        return None

    def watermark_ms(self) -> int | None:
        current_ms = self._watermarks.current_ms
        return None if current_ms == MIN_WATERMARK_MS else current_ms

    def queued(self) -> list[ChannelStatistics]:
        return self._gate.statistics()

    def pending_records(self) -> int | None:
        return None

    def _take_restored(
        self, begin: Iterator[Beginning], subtask: Subtask
    ) -> Iterator[Beginning] | None:
        """Takes one element; barriers wait until none is left."""
        match next(begin, None):
            case None:
                return None
            case Watermark() as mark:
                subtask.chain.broadcast(mark)
            case (port, batch):
                subtask.chain.on_batch(port, batch)
        return begin

    def _on_run(self, run: Run, subtask: Subtask) -> None:
        """Several watermarks make one step of event time."""
        parts = [(records.origins, records.batch.num_rows) for records in run.records]
        subtask.chain.on_batch(run.port, run.batch(), parts)
        if run.watermarks:
            self._on_watermarks(run, subtask)

    def _on_watermarks(self, run: Run, subtask: Subtask) -> None:
        marks: list[EventTimeMark] = []
        for channel, timestamp_ms in run.watermarks.items():
            marks += self._watermarks.on_watermark(channel, timestamp_ms)
        subtask.chain.on_event_time(marks if len(run.watermarks) == 1 else newest_marks(marks))

    def _on_mark(self, channel: ChannelId, mark: Mark, subtask: Subtask) -> None:
        match mark:
            case Watermark(timestamp_ms):
                subtask.chain.on_event_time(self._watermarks.on_watermark(channel, timestamp_ms))
            case WatermarkStatus(is_idle):
                marks = self._watermarks.on_status(channel, is_idle=is_idle)
                subtask.chain.on_event_time(marks)
            case Barrier():
                self._on_barrier(channel, mark, subtask)
            case CancelCheckpoint(checkpoint_id):
                self._alignment.on_cancelled(channel, checkpoint_id, subtask)
            case EndOfInput():
                self._on_end(channel, subtask)

    def _on_barrier(self, channel: ChannelId, barrier: Barrier, subtask: Subtask) -> None:
        self._alignment.on_barrier(channel, barrier, subtask)
        if self._alignment.is_aligning:
            subtask.reporter.reach(FaultPoint.ALIGNING)

    def _on_end(self, channel: ChannelId, subtask: Subtask) -> None:
        self._alignment.on_end(channel, subtask)
        subtask.chain.on_event_time(self._watermarks.on_end(channel))
        if self.has_ended:
            subtask.chain.broadcast(EndOfInput())
