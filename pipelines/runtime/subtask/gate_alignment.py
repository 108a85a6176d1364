"""Chooses the machine of a checkpointing mode, and carries out and times its decisions at one gate.

Owns the machine, the time at which barriers stop aligning and overtake, and the measurements. While
its subtask aligns, it compares the data that the gate holds back with the cap of the settings. The
gate owns the queues, and `SubtaskCheckpoints` cuts.

It also finds the checkpoints that a barrier, or a cancellation marker in its place, has ended here.
The subtask declines each of them, with Flink's name for the reason, so that the coordinator need
not wait until the checkpoint expires. Usually the coordinator has aborted it already, or has heard
of it from another subtask.

Source: Flink, `CheckpointBarrierHandler.notifyAbort` and its callers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from pipelines.channels.channel import HeldStep, InputGate
from pipelines.domain.checkpoint_failures import ChannelAlignment, CheckpointFailureReason, HeldBack
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, CancelCheckpoint
from pipelines.domain.errors import LastEvents, check
from pipelines.domain.graph import EdgeKind, Vertex
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.domain.settings import BarrierOptions, CapAction, CheckpointingMode
from pipelines.protocol.alignment import (
    BarrierAligner,
    BarrierTracker,
    BufferCap,
    UnalignedBarriers,
)
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    AllArrived,
    BarrierHandler,
    Block,
    CancelDownstream,
    Overtake,
    Resume,
    Snapshot,
)
from pipelines.runtime.subtask.feed import (
    IDLE_WAIT_MS,
    Broadcast,
    Cut,
    CutAhead,
    Decline,
    Effects,
    FeedEffect,
    GiveUp,
    KeepInFlight,
    ReportDeclined,
)
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords

STEPS_MAX = 16
"""The limit for each channel and checkpoint; a journal never drops these steps."""


@dataclass(slots=True)
class Alignment:
    """One checkpoint, from its first to its last barrier here. Reports times since the trigger."""

    barrier: Barrier
    first_ms: float  # monotonic
    start_delay_ms: float
    _arrivals: dict[ChannelId, float] = field(default_factory=dict)

    def on_barrier(self, channel: ChannelId, now_ms: float) -> None:
        self._arrivals.setdefault(channel, now_ms)

    @property
    def alignment_ms(self) -> float:
        return max(self._arrivals.values(), default=self.first_ms) - self.first_ms

    def channels(
        self, held: Mapping[ChannelId, Sequence[HeldStep]], over_cap: Collection[ChannelId] = ()
    ) -> list[ChannelAlignment]:
        """Call when the last barrier has arrived, before any channel is resumed."""
        last_ms = self.first_ms + self.alignment_ms
        return [
            ChannelAlignment(
                channel=channel,
                arrived_ms=self._after_trigger(arrived_ms),
                blocked_ms=last_ms - arrived_ms if channel in held else 0.0,
                buffered_records=held[channel][-1].records if channel in held else 0,
                buffered_bytes=held[channel][-1].size_bytes if channel in held else 0,
                is_over_cap=channel in over_cap,
                steps=self._steps(held.get(channel, ())),
            )
            for channel, arrived_ms in self._arrivals.items()
        ]

    def _steps(self, held: Sequence[HeldStep]) -> tuple[HeldBack, ...]:
        return tuple(
            HeldBack(round(self._after_trigger(step.at_ms), 3), step.records, step.size_bytes)
            for step in evenly(held, STEPS_MAX)
        )

    def _after_trigger(self, monotonic_ms: float) -> float:
        return self.start_delay_ms + monotonic_ms - self.first_ms


def evenly(held: Sequence[HeldStep], count_max: int) -> Sequence[HeldStep]:
    """Returns at most `count_max` of the steps, evenly, with the first and the last."""
    if len(held) <= count_max:
        return held
    last = len(held) - 1
    return [held[last * index // (count_max - 1)] for index in range(count_max)]


def with_persisted(
    channels: list[ChannelAlignment], recorded: Iterable[InFlightRecords]
) -> list[ChannelAlignment]:
    """Adds to each channel the rows and bytes of it that went into the snapshot."""
    kept = {one.channel: one for one in recorded}
    return [
        msgspec.structs.replace(
            one,
            persisted_records=kept[one.channel].rows,
            persisted_bytes=kept[one.channel].size_bytes,
        )
        if one.channel in kept
        else one
        for one in channels
    ]


class AlignmentTiming:
    """Keeps each checkpoint that has a barrier here, until its cut removes it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._under_way: dict[CheckpointId, Alignment] = {}
        self._newest_taken: CheckpointId = NO_CHECKPOINT

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        """A repeated or late barrier changes nothing."""
        alignment = self.on_announced(barrier)
        if alignment is not None:
            alignment.on_barrier(channel, self.clock.monotonic_ms())

    def on_announced(self, barrier: Barrier) -> Alignment | None:
        """The barrier is in a queue, behind records. Returns None if it is late."""
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._newest_taken:
            return None
        if checkpoint_id not in self._under_way:
            delay_ms = max(0.0, float(self.clock.wall_ms() - barrier.trigger_ms))
            now_ms = self.clock.monotonic_ms()
            self._under_way[checkpoint_id] = Alignment(barrier, now_ms, delay_ms)
        return self._under_way[checkpoint_id]

    def of(self, checkpoint_id: CheckpointId) -> Alignment:
        is_known = checkpoint_id in self._under_way
        check(is_known, "a barrier comes before its cut", checkpoint_id=checkpoint_id)
        return self._under_way[checkpoint_id]

    def take(self, checkpoint_id: CheckpointId) -> Alignment:
        """Removes and returns a checkpoint that is over here; drops all older ones, cut or not."""
        alignment = self.of(checkpoint_id)
        self._newest_taken = checkpoint_id
        self._under_way = {n: a for n, a in self._under_way.items() if n > checkpoint_id}
        return alignment


CAP_STEP_MS = 10.0
"""How often an idle subtask that aligns checks how much it holds back."""


@dataclass(slots=True)
class AlignmentBuffers:
    """Compares the data held back with the cap, and reports an excess once per checkpoint."""

    gate: InputGate
    cap: BufferCap
    _reported_id: CheckpointId = NO_CHECKPOINT
    _over_cap: frozenset[ChannelId] = frozenset()

    def excess(self, aligning_id: CheckpointId | None) -> str | None:
        """Returns one sentence the first time that the cap is exceeded, else None."""
        if not self.cap.is_set or aligning_id is None or aligning_id == self._reported_id:
            return None
        held = {s.channel: s.queued_bytes for s in self.gate.statistics() if s.held_back}
        exceeded = self.cap.exceeded_by(held)
        if not exceeded:
            return None
        self._reported_id, self._over_cap = aligning_id, exceeded
        fullest = max(held, key=lambda channel: held[channel])
        return (
            f"{sum(held.values())} bytes are held back, {held[fullest]} of them on {fullest}:"
            " more than execution.checkpointing.alignment-buffer allows"
        )

    def over_cap(self, checkpoint_id: CheckpointId) -> frozenset[ChannelId]:
        return self._over_cap if checkpoint_id == self._reported_id else frozenset()


def declines(
    came: CheckpointId, effects: Iterable[AlignmentEffect]
) -> dict[CheckpointId, CheckpointFailureReason]:
    """Returns the checkpoints to decline. `effects` are the machine's decisions when the barrier or
    marker of `came` arrived."""
    declined: dict[CheckpointId, CheckpointFailureReason] = {}
    for effect in effects:
        match effect:
            case Abort(checkpoint_id) if checkpoint_id != came:
                declined[checkpoint_id] = CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED
            case Abort(checkpoint_id) | CancelDownstream(checkpoint_id):
                reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
                declined[checkpoint_id] = reason
    return declined


class GateAlignment:
    """Acts on the gate; returns the tasks of the subtask. Only the subtask's thread uses it."""

    def __init__(
        self,
        gate: InputGate,
        handler: BarrierHandler,
        options: BarrierOptions,
        timing: AlignmentTiming,
    ) -> None:
        self._gate = gate
        self._handler = handler
        self._options = options
        self._timing = timing
        self._turning = handler if isinstance(handler, UnalignedBarriers) else None
        self._alarm: tuple[CheckpointId, float] | None = None  # when its barriers start to overtake
        self._last = LastEvents()
        cap = BufferCap(options.channel_cap_bytes, options.subtask_cap_bytes)
        self._buffers = AlignmentBuffers(gate, cap)
        self._has_cap = cap.is_set
        gate.measure_by(timing.clock)
        if self._turning is not None:
            gate.announce_barriers()

    @property
    def has_open_inputs(self) -> bool:
        return self._handler.has_open_inputs

    @property
    def is_aligning(self) -> bool:
        return self._handler.aligning_id is not None

    @property
    def wait_ms(self) -> float:
        """How long the subtask may wait before it must check the buffers again."""
        return CAP_STEP_MS if self._has_cap and self.is_aligning else IDLE_WAIT_MS

    @property
    def due_ms(self) -> float | None:
        return None if self._alarm is None else self._alarm[1]

    def attend(self) -> Effects | None:
        """Handles announced barriers, alignments that time out, and buffers over their cap."""
        done = None if self._turning is None else self._attend_to_barriers(self._turning)
        if done is None and self._has_cap:
            return self._attend_to_buffers()
        return done

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> Effects:
        self._timing.on_barrier(channel, barrier)
        with self._last.during(f"barrier {barrier.checkpoint_id} of {channel}"):
            effects = self._handler.on_barrier(channel, barrier.checkpoint_id)
        return self._carry_out_of_stream(barrier.checkpoint_id, effects)

    def on_cancelled(self, channel: ChannelId, checkpoint_id: CheckpointId) -> Effects:
        with self._last.during(f"cancellation of {checkpoint_id} by {channel}"):
            effects = self._handler.on_cancelled(channel, checkpoint_id)
        return self._carry_out_of_stream(checkpoint_id, effects)

    def on_aborted(self, checkpoint_id: CheckpointId) -> Effects:
        with self._last.during(f"abort of {checkpoint_id}"):
            effects = self._handler.on_aborted(checkpoint_id)
        return self._carry_out(effects)

    def on_end(self, channel: ChannelId) -> Effects:
        with self._last.during(f"end of {channel}"):
            effects = self._handler.on_end(channel)
        return self._carry_out(effects)

    def _attend_to_barriers(self, turning: UnalignedBarriers) -> Effects | None:
        announced = self._gate.poll_announced()
        if announced is not None:
            return self._on_announced(turning, *announced)
        if self._alarm is None or self._timing.clock.monotonic_ms() < self._alarm[1]:
            return None
        checkpoint_id, self._alarm = self._alarm[0], None
        with self._last.during(f"alignment of {checkpoint_id} takes too long"):
            effects = turning.on_time_is_up(checkpoint_id)
        return self._carry_out_of_stream(checkpoint_id, effects)

    def _on_announced(
        self, turning: UnalignedBarriers, channel: ChannelId, barrier: Barrier
    ) -> Effects:
        checkpoint_id = barrier.checkpoint_id
        if barrier.overtakes or turning.recording_id == checkpoint_id:
            self._timing.on_barrier(channel, barrier)
        else:
            self._timing.on_announced(barrier)
        self._set_alarm(barrier)
        with self._last.during(f"barrier {checkpoint_id} announced by {channel}"):
            effects = turning.on_announced(channel, checkpoint_id, overtakes=barrier.overtakes)
        return self._carry_out_of_stream(checkpoint_id, effects)

    def _set_alarm(self, barrier: Barrier) -> None:
        is_newer = self._alarm is None or self._alarm[0] < barrier.checkpoint_id
        due_ms = turns_at_ms(barrier, self._options, self._timing.clock)
        if due_ms is not None and is_newer and not barrier.overtakes:
            self._alarm = (barrier.checkpoint_id, due_ms)

    def _attend_to_buffers(self) -> Effects | None:
        """Acts if the gate holds back more than the cap allows."""
        checkpoint_id = self._handler.aligning_id
        excess = self._buffers.excess(checkpoint_id)
        if excess is None or checkpoint_id is None:
            return None
        with self._last.during(f"alignment of {checkpoint_id} holds back too much"):
            return self._on_excess(checkpoint_id, excess)

    def _on_excess(self, checkpoint_id: CheckpointId, excess: str) -> Effects | None:
        match self._options.cap_action:
            case CapAction.WAIT:
                return None  # the phases of the checkpoint report it
            case CapAction.UNALIGNED:
                if self._turning is None or not may_turn(self._timing.of(checkpoint_id).barrier):
                    return None
                return self._carry_out(self._turning.on_time_is_up(checkpoint_id))
            case CapAction.ABORT:
                given_up = self._carry_out(self._handler.on_aborted(checkpoint_id))
                return [Decline(checkpoint_id, excess), *given_up]

    def _carry_out_of_stream(
        self, checkpoint_id: CheckpointId, effects: list[AlignmentEffect]
    ) -> Effects:
        """Declines the checkpoints that the barrier or marker of `checkpoint_id` has ended."""
        why = f"met by checkpoint {checkpoint_id}"
        declined = declines(checkpoint_id, effects).items()
        reports = [ReportDeclined(declined_id, reason, why) for declined_id, reason in declined]
        return [*reports, *self._carry_out(effects)]

    def _carry_out(self, effects: list[AlignmentEffect]) -> Effects:
        """Carries out the effects on the gate; returns those that are left to the subtask."""
        with self._last.taken_along():
            left = [self._carried_out(effect) for effect in effects]
        return [each for each in left if each is not None]

    def _carried_out(self, effect: AlignmentEffect) -> FeedEffect | None:
        match effect:
            case Block(channel):
                self._gate.hold_back(channel)
            case Resume(channels):
                for channel in channels:
                    self._gate.resume(channel)
            case Snapshot(checkpoint_id):
                return self._cut(checkpoint_id)
            case Abort(checkpoint_id):
                self._gate.take_recorded()
                return GiveUp(checkpoint_id)
            case Overtake(checkpoint_id, unread):
                return self._cut_ahead(checkpoint_id, unread)
            case CancelDownstream(checkpoint_id):
                return Broadcast(CancelCheckpoint(checkpoint_id))
            case AllArrived(checkpoint_id):
                return self._kept_in_flight(checkpoint_id)
        return None

    def _cut(self, checkpoint_id: CheckpointId) -> Cut:
        alignment = self._timing.take(checkpoint_id)
        return Cut(
            alignment.barrier,
            alignment.start_delay_ms,
            alignment.alignment_ms,
            tuple(self._channels(alignment)),
        )

    def _channels(self, alignment: Alignment) -> list[ChannelAlignment]:
        over_cap = self._buffers.over_cap(alignment.barrier.checkpoint_id)
        return alignment.channels(self._gate.held_steps(), over_cap)

    def _cut_ahead(self, checkpoint_id: CheckpointId, unread: frozenset[ChannelId]) -> CutAhead:
        self._gate.record(checkpoint_id, unread)
        alignment = self._timing.of(checkpoint_id)
        return CutAhead(replace(alignment.barrier, overtakes=True), alignment.start_delay_ms)

    def _kept_in_flight(self, checkpoint_id: CheckpointId) -> KeepInFlight:
        alignment = self._timing.take(checkpoint_id)
        batches = self._gate.take_recorded()
        recorded = [InFlightRecords(c, False, kept) for c, kept in batches.items() if kept]
        now_ms = self._timing.clock.monotonic_ms()
        for channel in batches:  # their barriers may have been announced before they could overtake
            alignment.on_barrier(channel, now_ms)
        channels = with_persisted(self._channels(alignment), recorded)
        return KeepInFlight(checkpoint_id, alignment.alignment_ms, tuple(channels), tuple(recorded))


def handler_for(
    options: BarrierOptions, vertex: Vertex, inputs: Iterable[ChannelId]
) -> BarrierHandler:
    match options.mode:
        case (
            CheckpointingMode.AT_LEAST_ONCE
            | CheckpointingMode.AT_MOST_ONCE
            | CheckpointingMode.ACKED
        ):
            return BarrierTracker(inputs)
        case CheckpointingMode.EXACTLY_ONCE if _may_overtake(options) and _may_record(vertex):
            return UnalignedBarriers(inputs)
        case CheckpointingMode.EXACTLY_ONCE:
            return BarrierAligner(inputs)


def turns_at_ms(barrier: Barrier, options: BarrierOptions, clock: Clock) -> float | None:
    """Returns the monotonic time from which an aligned barrier overtakes, or None if it never does.

    The timeout counts from the trigger, so that it does not add up from hop to hop.
    """
    if not options.unaligned or not may_turn(barrier):
        return None
    since_trigger_ms = clock.wall_ms() - barrier.trigger_ms
    left_ms = options.aligned_timeout_ms - max(0, since_trigger_ms)  # clocks may be stepped
    return clock.monotonic_ms() + max(0, left_ms)


def overtakes_at_once(barrier: Barrier, options: BarrierOptions) -> bool:
    """Returns True if a source sends the barrier as one that overtakes."""
    return options.unaligned and may_turn(barrier) and options.aligned_timeout_ms == 0


def may_turn(barrier: Barrier) -> bool:
    """Returns True if the barrier may start to overtake. Savepoints and final checkpoints store no
    records in flight, so that any run can use them."""
    return not barrier.is_savepoint and not barrier.is_final


def _may_overtake(options: BarrierOptions) -> bool:
    return options.unaligned or options.cap_action is CapAction.UNALIGNED


def _may_record(vertex: Vertex) -> bool:
    """Returns False if an input is broadcast. Its records in flight could not be redistributed, so
    there barriers always align."""
    return all(edge.kind is not EdgeKind.BROADCAST for edge in vertex.inputs)
