"""Which machine follows the barriers of a subtask's inputs, for each checkpointing mode."""

from collections.abc import Iterable

from pipelines.domain.ids import ChannelId
from pipelines.domain.settings import BarrierOptions, CheckpointingMode
from pipelines.protocol.alignment import BarrierAligner
from pipelines.protocol.barrier_handling import BarrierHandler
from pipelines.protocol.barrier_tracking import BarrierTracker


def handler_for(options: BarrierOptions, inputs: Iterable[ChannelId]) -> BarrierHandler:
    match options.mode:
        case CheckpointingMode.EXACTLY_ONCE:
            return BarrierAligner(inputs)
        case CheckpointingMode.AT_LEAST_ONCE:
            return BarrierTracker(inputs)
