"""The writing end of a channel within one slot: the same objects, no serialization."""

from collections.abc import Callable

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import Credit, cost_of
from pipelines.channels.gate import Gate
from pipelines.channels.inlet import Inlet
from pipelines.channels.outbox import Outbox
from pipelines.domain.elements import Barrier, Element
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId, CheckpointId


class LocalOutput:
    """Implements `Output`; used by the one subtask thread that writes the channel.

    Until `on_gate` has told it where to, elements wait, as on a channel without credit.
    """

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self._credit = Credit()
        self._outbox = Outbox(channel, self._credit, self._pass_on)
        self._inlet: Inlet | None = None

    def on_gate(self, gate: Gate) -> None:
        """From any thread, once."""
        try:
            self._inlet = gate.attach(
                self.channel,
                return_credit=self._credit.try_give_back,
                on_close=self._credit.close,
            )
        except ChannelClosed as error:
            self._credit.close(str(error))
        else:
            self._credit.open(gate.capacity_bytes)

    def send(self, element: Element) -> None:
        self._outbox.send(element)

    def flush(self) -> bool:
        return self._outbox.flush()

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        return self._outbox.overtake(barrier)

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        return self._outbox.holds_barrier(checkpoint_id)

    def on_available(self, wake: Callable[[], None]) -> None:
        self._credit.on_available(wake)

    def close(self, reason: str) -> None:
        """For a channel whose gate may never come."""
        self._credit.close(reason)

    def _pass_on(self, element: Element) -> None:
        if self._inlet is None:
            raise InvariantViolated(f"channel {self.channel} has credit but no gate")
        cost_bytes = cost_of(element)
        self._credit.take(cost_bytes)
        self._inlet.offer(element, cost_bytes)
