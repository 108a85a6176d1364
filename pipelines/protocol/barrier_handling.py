"""The interface of every machine that follows the barriers of one subtask's inputs.

Decides nothing: the modes are `alignment` (wait and hold back), `barrier_tracking` (count) and
`unaligned` (overtake). Source: Flink, `CheckpointBarrierHandler`.
"""

from typing import Protocol

from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.protocol.effects import AlignmentEffect


class BarrierHandler(Protocol):
    """The host passes in events in order of arrival, and carries out the effects, in order, before
    the next event."""

    @property
    def aligning_id(self) -> CheckpointId | None:
        """The checkpoint whose barrier some, but not all, inputs have delivered."""
        ...

    @property
    def has_open_inputs(self) -> bool: ...

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The host has taken all that lies before the barrier from `channel`, nothing behind it."""
        ...

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """`channel` has delivered a cancellation marker in place of the barrier."""
        ...

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The coordinator, or this subtask itself, has aborted `checkpoint_id`."""
        ...

    def on_end(self, channel: ChannelId) -> list[AlignmentEffect]:
        """The input is exhausted."""
        ...
