"""Feeds a subtask from its input gate and carries out what the machine of its mode decides."""

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics, InputGate
from pipelines.domain.elements import (
    MIN_WATERMARK_MS,
    Barrier,
    CancelCheckpoint,
    EndOfInput,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.domain.phases import ChannelAlignment
from pipelines.domain.settings import BarrierOptions, CapAction
from pipelines.domain.snapshots import Json
from pipelines.protocol.barrier_handling import BarrierHandler
from pipelines.protocol.buffer_cap import BufferCap
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    AllArrived,
    Block,
    CancelDownstream,
    Overtake,
    Resume,
    Snapshot,
)
from pipelines.protocol.unaligned import UnalignedBarriers
from pipelines.protocol.watermarks import WatermarkMerger
from pipelines.runtime.alignment_buffers import CAP_STEP_MS, AlignmentBuffers
from pipelines.runtime.alignment_timing import Alignment, AlignmentTiming, with_persisted
from pipelines.runtime.barrier_modes import may_turn, turns_at_ms
from pipelines.runtime.in_flight import Beginning, InFlightRecords, beginning
from pipelines.runtime.subtask import IDLE_WAIT_MS, Subtask, end_of_stream


class GateFeed:
    """`ports` maps each input channel to the operator's port it belongs to."""

    def __init__(
        self,
        gate: InputGate,
        ports: dict[ChannelId, int],
        handler: BarrierHandler,
        barriers: BarrierOptions,
        timing: AlignmentTiming,
        restored_watermark_ms: int | None,
        in_flight: Iterable[tuple[int, pa.RecordBatch]] = (),
    ) -> None:
        self._gate = gate
        self._ports = ports
        self._timing = timing
        self._handler = handler
        self._barriers = barriers
        self._turning = handler if isinstance(handler, UnalignedBarriers) else None
        self._alarm: tuple[CheckpointId, float] | None = None  # when an alignment is left
        self._begin = beginning(in_flight, restored_watermark_ms)
        if self._turning is not None:
            gate.announce_barriers()
        self._watermarks = WatermarkMerger(ports, restored_watermark_ms)
        cap = BufferCap(barriers.channel_cap_bytes, barriers.subtask_cap_bytes)
        self._buffers = AlignmentBuffers(gate, cap)
        self._dies_aligning = False

    @property
    def has_ended(self) -> bool:
        return not self._handler.has_open_inputs

    @property
    def wait_ms(self) -> float:
        looks_at_buffers = self._buffers.cap.is_set and self._handler.aligning_id is not None
        return CAP_STEP_MS if looks_at_buffers else IDLE_WAIT_MS

    @property
    def due_ms(self) -> float | None:
        return None if self._alarm is None else self._alarm[1]

    def die_while_aligning(self) -> None:
        """Fault on purpose: SIGKILL this process the next time an input is held back."""
        self._dies_aligning = True

    def attend(self, subtask: Subtask) -> bool:
        """Barriers that are announced, and alignments whose time is up."""
        if self._begin is not None:
            return False
        return self._attend_to_barriers(subtask) or self._attend_to_buffers(subtask)

    def _attend_to_barriers(self, subtask: Subtask) -> bool:
        if self._turning is None:
            return False
        announced = self._gate.poll_announced()
        if announced is not None:
            self._on_announced(*announced, subtask)
            return True
        if self._alarm is None or subtask.clock.monotonic_ms() < self._alarm[1]:
            return False
        checkpoint_id, self._alarm = self._alarm[0], None
        self._carry_out(self._turning.on_time_is_up(checkpoint_id), subtask)
        return True

    def advance(self, subtask: Subtask) -> bool:
        if self._begin is not None:
            self._begin = self._take_restored(self._begin, subtask)
            return True
        polled = self._gate.poll()
        if polled is None:
            return False
        channel, element = polled
        match element:
            case Records(batch, origin):
                subtask.chain.on_batch(self._ports[channel], batch, origin)
            case Watermark(timestamp_ms):
                subtask.chain.on_event_time(self._watermarks.on_watermark(channel, timestamp_ms))
            case WatermarkStatus(is_idle):
                marks = self._watermarks.on_status(channel, is_idle=is_idle)
                subtask.chain.on_event_time(marks)
            case Barrier():
                self._on_barrier(channel, element, subtask)
            case CancelCheckpoint(checkpoint_id):
                self._carry_out(self._handler.on_cancelled(channel, checkpoint_id), subtask)
            case EndOfInput():
                self._on_end(channel, subtask)
        return True

    def drain(self, subtask: Subtask) -> None:
        raise InvariantViolated(f"event time ends at sources only, not at {subtask.name}")

    def on_injected(self, barrier: Barrier, subtask: Subtask) -> None:
        raise InvariantViolated(f"barriers are injected at sources only, not at {subtask.name}")

    def on_completed(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        pass

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        self._carry_out(self._handler.on_aborted(checkpoint_id), subtask)

    def positions(self) -> Json:
        return None

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
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

    def _take_restored(
        self, begin: Iterator[Beginning], subtask: Subtask
    ) -> Iterator[Beginning] | None:
        """One element; barriers wait until there is none left."""
        match next(begin, None):
            case None:
                return None
            case Watermark() as mark:
                subtask.chain.broadcast(mark)
            case (port, batch):
                subtask.chain.on_batch(port, batch)
        return begin

    def _on_announced(self, channel: ChannelId, barrier: Barrier, subtask: Subtask) -> None:
        if self._turning is None:
            raise InvariantViolated("only a gate whose barriers may overtake announces them")
        checkpoint_id = barrier.checkpoint_id
        recorded = self._turning.recording_id
        if barrier.overtakes or recorded == checkpoint_id:
            self._timing.on_barrier(channel, barrier)
        else:
            self._timing.on_announced(barrier)
        self._set_alarm(barrier, subtask)
        effects = self._turning.on_announced(channel, checkpoint_id, overtakes=barrier.overtakes)
        self._carry_out(effects, subtask)

    def _set_alarm(self, barrier: Barrier, subtask: Subtask) -> None:
        is_newer = self._alarm is None or self._alarm[0] < barrier.checkpoint_id
        due_ms = turns_at_ms(barrier, self._barriers, subtask.clock)
        if due_ms is not None and is_newer and not barrier.overtakes:
            self._alarm = (barrier.checkpoint_id, due_ms)

    def _attend_to_buffers(self, subtask: Subtask) -> bool:
        """Whether something was done because more is held back than the cap allows."""
        checkpoint_id = self._handler.aligning_id
        excess = self._buffers.excess(checkpoint_id)
        if excess is None or checkpoint_id is None:
            return False
        match self._barriers.cap_action:
            case CapAction.WAIT:
                return False  # its phases say so
            case CapAction.UNALIGNED:
                if self._turning is None or not may_turn(self._timing.of(checkpoint_id).barrier):
                    return False
                self._carry_out(self._turning.on_time_is_up(checkpoint_id), subtask)
            case CapAction.ABORT:
                subtask.decline(checkpoint_id, excess)
                self._carry_out(self._handler.on_aborted(checkpoint_id), subtask)
        return True

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
                case Abort(checkpoint_id):
                    self._gate.take_recorded()
                    subtask.give_up(checkpoint_id)
                case Overtake(checkpoint_id, unread):
                    self._overtake(checkpoint_id, unread, subtask)
                case CancelDownstream(checkpoint_id):
                    subtask.chain.broadcast(CancelCheckpoint(checkpoint_id))
                case AllArrived(checkpoint_id):
                    self._finish_recording(checkpoint_id, subtask)

    def _snapshot(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        alignment = self._timing.take(checkpoint_id)
        subtask.snapshot(
            alignment.barrier,
            alignment.start_delay_ms,
            alignment.alignment_ms,
            self._channels(alignment),
        )

    def _channels(self, alignment: Alignment) -> list[ChannelAlignment]:
        over_cap = self._buffers.over_cap(alignment.barrier.checkpoint_id)
        return alignment.channels(self._gate.statistics(), over_cap)

    def _overtake(
        self, checkpoint_id: CheckpointId, unread: frozenset[ChannelId], subtask: Subtask
    ) -> None:
        self._gate.record(checkpoint_id, unread)
        alignment = self._timing.of(checkpoint_id)
        barrier = replace(alignment.barrier, overtakes=True)
        subtask.overtake(barrier, alignment.start_delay_ms)

    def _finish_recording(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        alignment = self._timing.take(checkpoint_id)
        batches = self._gate.take_recorded()
        recorded = [InFlightRecords(c, False, kept) for c, kept in batches.items() if kept]
        now_ms = subtask.clock.monotonic_ms()
        for channel in batches:  # those that were announced before their alignment was left
            alignment.on_barrier(channel, now_ms)
        channels = with_persisted(self._channels(alignment), recorded)
        subtask.inputs_recorded(checkpoint_id, alignment.alignment_ms, channels, recorded)

    def _on_end(self, channel: ChannelId, subtask: Subtask) -> None:
        self._carry_out(self._handler.on_end(channel), subtask)
        subtask.chain.on_event_time(self._watermarks.on_end(channel))
        if self.has_ended:
            end_of_stream(subtask)
