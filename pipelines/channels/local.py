"""The writing end of a channel within one slot: the same objects, no serialization."""

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import Credit, cost_of
from pipelines.channels.gate import Gate, Inlet
from pipelines.domain.elements import Element, EndOfInput
from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.ids import ChannelId


class LocalOutput:
    """Implements `Output`; used by the one subtask thread that writes the channel.

    Until `on_gate` has told it where to, `send` waits, as on a channel without credit.
    """

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self._credit = Credit()
        self._inlet: Inlet | None = None
        self._has_ended = False

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
        check(not self._has_ended, "nothing follows the end of input", channel=self.channel)
        cost_bytes = cost_of(element)
        self._credit.take(cost_bytes)
        if self._inlet is None:
            raise InvariantViolated(f"channel {self.channel} has credit but no gate")
        self._inlet.offer(element, cost_bytes)
        self._has_ended = isinstance(element, EndOfInput)

    def close(self, reason: str) -> None:
        """For a channel whose gate may never come."""
        self._credit.close(reason)

    def blocked_ms(self) -> float:
        return self._credit.blocked_ms()
