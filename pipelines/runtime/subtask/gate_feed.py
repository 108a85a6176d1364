"""Feeds a subtask from its input gate: records and event time; `GateAlignment` gets barriers."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics, InputGate
from pipelines.channels.coalescing import Coalescing, Run
from pipelines.domain.elements import (
    Barrier,
    CancelCheckpoint,
    EndOfInput,
    Mark,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark, WatermarkMerger, newest_marks
from pipelines.runtime.subtask.feed import Broadcast, Effects, PassTime, Process, Reach
from pipelines.runtime.subtask.gate_alignment import GateAlignment
from pipelines.runtime.subtask.snapshots.in_flight import Beginning, beginning
from pipelines.runtime.subtask.work_pieces import WorkPieces


class GateFeed:
    def __init__(
        self,
        gate: InputGate,
        coalescing: Coalescing,
        alignment: GateAlignment,
        restored_watermark_ms: int | None,
        in_flight: Iterable[tuple[int, pa.RecordBatch]] = (),
        pieces: WorkPieces | None = None,
    ) -> None:
        """If `pieces` is None, every batch is handled as a whole."""
        gate.coalesce(coalescing)
        self._gate = gate
        self._alignment = alignment
        self._begin = beginning(in_flight, restored_watermark_ms)
        self._watermarks = WatermarkMerger(coalescing.inputs, restored_watermark_ms)
        self.has_ended = not alignment.has_open_inputs
        self._pieces = pieces
        self._to_come: deque[Process] = deque()  # remaining pieces of the batch in work
        self._behind: dict[ChannelId, int] = {}  # watermarks behind that batch

    @property
    def wait_ms(self) -> float:
        return self._alignment.wait_ms

    @property
    def due_ms(self) -> float | None:
        dues = (self._alignment.due_ms, self._gate.due_ms)
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def attend(self) -> Effects | None:
        """Finishes the batch in work first, as if it were one piece: an overtaking barrier waits
        for it, and its output does not wait for credit."""
        if self._pieces is not None:
            self._pieces.end()
        if self._to_come:
            return self._next_piece()
        return self._alignment.attend() if self._begin is None else None

    def advance(self) -> Effects | None:
        if self._to_come:
            return self._next_piece()
        if self._begin is not None:
            return self._take_restored(self._begin)
        polled = self._gate.poll_run()
        if polled is None:
            return None
        return self._on_run(polled) if isinstance(polled, Run) else self._on_mark(*polled)

    def drain(self) -> Effects:
        raise InvariantViolated("event time ends at sources only")

    def on_injected(self, barrier: Barrier) -> Effects:
        raise InvariantViolated(f"barriers are injected at sources only: {barrier.checkpoint_id}")

    def on_completed(self, checkpoint_id: CheckpointId) -> Effects:
        return []

    def on_aborted(self, checkpoint_id: CheckpointId) -> Effects:
        return self._alignment.on_aborted(checkpoint_id)

    def close(self) -> None:
        """Does nothing: the network closes the gate."""

    def positions(self) -> Json:
        return None

    def counts_beyond_positions(self) -> Mapping[str, int]:
        return {}

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

    def source_problem(self) -> str:
        return ""

    def _take_restored(self, begin: Iterator[Beginning]) -> Effects:
        """Takes one restored element; barriers wait until none is left."""
        match next(begin, None):
            case None:
                self._begin = None
                return []
            case Watermark() as mark:
                return [Broadcast(mark)]
            case (port, batch):
                return [Process(port, batch)]

    def _on_run(self, run: Run) -> Effects:
        """Begins a batch. Watermarks behind it become one step of event time."""
        process = Process(run.port, run.batch(), run.parts())
        self._to_come.extend([process] if self._pieces is None else self._pieces.of(process))
        self._behind = run.watermarks
        return self._next_piece()

    def _next_piece(self) -> Effects:
        piece = self._to_come.popleft()
        if self._pieces is not None:
            self._pieces.begin(piece)
        if self._to_come:
            return [piece]
        marks: list[EventTimeMark] = []
        for channel, timestamp_ms in self._behind.items():
            marks += self._watermarks.on_watermark(channel, timestamp_ms)
        if not marks:
            return [piece]
        return [piece, PassTime(marks if len(marks) == 1 else newest_marks(marks))]

    def _on_mark(self, channel: ChannelId, mark: Mark) -> Effects:
        match mark:
            case Watermark(timestamp_ms):
                return [PassTime(self._watermarks.on_watermark(channel, timestamp_ms))]
            case WatermarkStatus(is_idle):
                return [PassTime(self._watermarks.on_status(channel, is_idle=is_idle))]
            case Barrier():
                return self._on_barrier(channel, mark)
            case CancelCheckpoint(checkpoint_id):
                return self._alignment.on_cancelled(channel, checkpoint_id)
            case EndOfInput():
                return self._on_end(channel)

    def _on_barrier(self, channel: ChannelId, barrier: Barrier) -> Effects:
        effects = self._alignment.on_barrier(channel, barrier)
        return [*effects, Reach(FaultPoint.ALIGNING)] if self._alignment.is_aligning else effects

    def _on_end(self, channel: ChannelId) -> Effects:
        effects = self._alignment.on_end(channel)
        self.has_ended = not self._alignment.has_open_inputs
        effects.append(PassTime(self._watermarks.on_end(channel)))
        return [*effects, Broadcast(EndOfInput())] if self.has_ended else effects
