"""The writing end of a channel within one slot: the same objects, no serialization."""

from typing import TYPE_CHECKING

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import cost_of
from pipelines.channels.credited_output import CreditedOutput
from pipelines.channels.gate import Gate
from pipelines.domain.elements import Element
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId

if TYPE_CHECKING:
    from pipelines.channels.inlet import Inlet


class LocalOutput(CreditedOutput):
    """Until `on_gate` gives the target, elements wait, as on a channel without credit."""

    def __init__(self, channel: ChannelId) -> None:
        super().__init__(channel)
        self._inlet: Inlet | None = None

    def on_gate(self, gate: Gate) -> None:
        """Any thread may call it, once."""
        try:
            self._inlet = gate.attach(
                self.channel,
                return_credit=self.credit.try_give_back,
                on_close=self.credit.close,
            )
        except ChannelClosed as error:
            self.credit.close(str(error))
        else:
            self.credit.open(gate.capacity_bytes, self._inlet.granted_bytes)

    def close(self, reason: str) -> None:
        """For a channel whose gate may never come."""
        self.credit.close(reason)

    def _pass_on(self, element: Element) -> None:
        if self._inlet is None:
            raise InvariantViolated(f"channel {self.channel} has credit but no gate")
        cost_bytes = cost_of(element)
        self.credit.take(cost_bytes)
        self._inlet.offer(element, cost_bytes)
