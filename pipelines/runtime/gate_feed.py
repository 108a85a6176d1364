"""Feeds a subtask from its input gate and carries out what the machine of its mode decides."""

import os
import signal

from pipelines.channels.channel import ChannelStatistics, InputGate
from pipelines.domain.elements import MIN_WATERMARK_MS, Barrier, EndOfInput, Records, Watermark
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.barrier_handling import BarrierHandler
from pipelines.protocol.effects import Abort, AlignmentEffect, Block, Resume, Snapshot
from pipelines.protocol.watermarks import WatermarkMerger
from pipelines.runtime.alignment_timing import AlignmentTiming
from pipelines.runtime.subtask import IDLE_WAIT_MS, Subtask, end_of_stream


class GateFeed:
    """`ports` maps each input channel to the operator's port it belongs to."""

    def __init__(
        self,
        gate: InputGate,
        ports: dict[ChannelId, int],
        handler: BarrierHandler,
        timing: AlignmentTiming,
        restored_watermark_ms: int | None,
    ) -> None:
        self._gate = gate
        self._ports = ports
        self._timing = timing
        self._handler = handler
        self._watermarks = WatermarkMerger(ports, restored_watermark_ms)
        self._dies_aligning = False

    @property
    def has_ended(self) -> bool:
        return not self._handler.has_open_inputs

    @property
    def wait_ms(self) -> float:
        return IDLE_WAIT_MS

    def die_while_aligning(self) -> None:
        """Fault on purpose: SIGKILL this process the next time an input is held back."""
        self._dies_aligning = True

    def advance(self, subtask: Subtask) -> bool:
        polled = self._gate.poll()
        if polled is None:
            return False
        channel, element = polled
        match element:
            case Records(batch, origin):
                subtask.chain.on_batch(self._ports[channel], batch, origin)
            case Watermark(timestamp_ms):
                self._on_event_time(self._watermarks.on_watermark(channel, timestamp_ms), subtask)
            case Barrier():
                self._on_barrier(channel, element, subtask)
            case EndOfInput():
                self._on_end(channel, subtask)
        return True

    def on_injected(self, barrier: Barrier, subtask: Subtask) -> None:
        raise InvariantViolated(f"barriers are injected at sources only, not at {subtask.name}")

    def on_completed(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        pass

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        self._carry_out(self._handler.on_aborted(checkpoint_id), subtask)

    def positions(self) -> Json:
        return None

    def watermark_ms(self) -> int | None:
        current_ms = self._watermarks.current_ms
        return None if current_ms == MIN_WATERMARK_MS else current_ms

    def queued(self) -> list[ChannelStatistics]:
        return self._gate.statistics()

    def _on_barrier(self, channel: ChannelId, barrier: Barrier, subtask: Subtask) -> None:
        self._timing.on_barrier(channel, barrier)
        self._carry_out(self._handler.on_barrier(channel, barrier.checkpoint_id), subtask)
        if self._handler.aligning_id is None:
            return
        subtask.reporter.reach(FaultPoint.ALIGNING)
        if self._dies_aligning:
            os.kill(os.getpid(), signal.SIGKILL)

    def _carry_out(self, effects: list[AlignmentEffect], subtask: Subtask) -> None:
        for effect in effects:
            match effect:
                case Block(channel):
                    self._gate.hold_back(channel)
                case Resume(channels):
                    for channel in channels:
                        self._gate.resume(channel)
                case Snapshot(checkpoint_id):
                    self._snapshot(checkpoint_id, subtask)
                case Abort():
                    pass  # its barrier was never passed on; the newer one takes its place

    def _snapshot(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        alignment = self._timing.take(checkpoint_id)
        subtask.snapshot(
            alignment.barrier,
            alignment.start_delay_ms,
            alignment.alignment_ms,
            alignment.channels(self._gate.statistics()),
        )

    def _on_end(self, channel: ChannelId, subtask: Subtask) -> None:
        self._carry_out(self._handler.on_end(channel), subtask)
        self._on_event_time(self._watermarks.on_end(channel), subtask)
        if self.has_ended:
            end_of_stream(subtask)

    def _on_event_time(self, timestamp_ms: int | None, subtask: Subtask) -> None:
        if timestamp_ms is not None:
            subtask.chain.on_watermark(timestamp_ms)
