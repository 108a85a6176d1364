"""The writing end of a channel within one slot: the same objects, no serialization."""

from pipelines.channels.credit import Credit, cost_of
from pipelines.channels.gate import Gate
from pipelines.domain.elements import Element, EndOfInput
from pipelines.domain.errors import check
from pipelines.domain.ids import ChannelId


class LocalOutput:
    """Implements `Output`; used by the one subtask thread that writes the channel.

    `Gate.attach` admits one writer per channel, hence one of these per channel.
    """

    def __init__(self, gate: Gate, channel: ChannelId) -> None:
        self.channel = channel
        self._credit = Credit()
        self._inlet = gate.attach(
            channel, return_credit=self._credit.try_give_back, on_close=self._credit.close
        )
        self._credit.open(gate.capacity_bytes)
        self._has_ended = False

    def send(self, element: Element) -> None:
        check(not self._has_ended, "nothing follows the end of input", channel=self.channel)
        cost_bytes = cost_of(element)
        self._credit.take(cost_bytes)
        self._has_ended = isinstance(element, EndOfInput)
        self._inlet.offer(element, cost_bytes)

    def blocked_ms(self) -> float:
        return self._credit.blocked_ms()
