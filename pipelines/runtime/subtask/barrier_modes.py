"""Decides what a checkpointing mode means for a subtask: its machine, when barriers overtake."""

from collections.abc import Iterable

from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.graph import EdgeKind, Vertex
from pipelines.domain.ids import ChannelId
from pipelines.domain.settings import BarrierOptions, CapAction, CheckpointingMode
from pipelines.protocol.alignment import BarrierAligner
from pipelines.protocol.barrier_tracking import BarrierTracker
from pipelines.protocol.effects import BarrierHandler
from pipelines.protocol.unaligned import UnalignedBarriers


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
    """When an aligned barrier starts to overtake, monotonic; None: never.

    The time counts from the trigger, so that it does not add up from hop to hop.
    """
    if not options.unaligned or not may_turn(barrier):
        return None
    since_trigger_ms = clock.wall_ms() - barrier.trigger_ms
    left_ms = options.aligned_timeout_ms - max(0, since_trigger_ms)  # clocks may be stepped
    return clock.monotonic_ms() + max(0, left_ms)


def overtakes_at_once(barrier: Barrier, options: BarrierOptions) -> bool:
    """True if a source sends the barrier as one that overtakes."""
    return options.unaligned and may_turn(barrier) and options.aligned_timeout_ms == 0


def may_turn(barrier: Barrier) -> bool:
    """Savepoints and final checkpoints hold no records in flight, so that any run can use them."""
    return not barrier.is_savepoint and not barrier.is_final


def _may_overtake(options: BarrierOptions) -> bool:
    return options.unaligned or options.cap_action is CapAction.UNALIGNED


def _may_record(vertex: Vertex) -> bool:
    """Records in flight to a broadcast input could not be dealt again, so there barriers align."""
    return all(edge.kind is not EdgeKind.BROADCAST for edge in vertex.inputs)
