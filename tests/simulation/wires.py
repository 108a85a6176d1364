"""The channels of one attempt: the real gates and writers, without connections in between."""

from collections import defaultdict

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.domain.ids import ChannelId


class Wires:
    """A slot's elements wait until their reader is registered, as on a channel without credit."""

    def __init__(self) -> None:
        self._outputs: dict[ChannelId, LocalOutput] = {}
        self._readers: dict[ChannelId, Gate] = {}
        self._gates: defaultdict[int, list[Gate]] = defaultdict(list)

    def of(self, slot: int) -> "SlotWires":
        return SlotWires(self, slot)

    def add_output(self, channel: ChannelId) -> LocalOutput:
        output = self._outputs[channel] = LocalOutput(channel)
        self._bind(channel)
        return output

    def add_gate(self, slot: int, gate: Gate) -> None:
        self._gates[slot].append(gate)
        for channel in gate.channels:
            self._readers[channel] = gate
            self._bind(channel)

    def cut(self, slot: int) -> None:
        """Closes the channels of a dead slot, so that a writer finds them closed."""
        for gate in self._gates[slot]:
            gate.close()

    def _bind(self, channel: ChannelId) -> None:
        if channel in self._readers and channel in self._outputs:
            self._outputs[channel].on_gate(self._readers[channel])


class SlotWires:
    """The ends of one slot; implements the network that `deploy` needs."""

    def __init__(self, wires: Wires, slot: int) -> None:
        self._wires = wires
        self._slot = slot

    def output(self, channel: ChannelId, target: int) -> LocalOutput:
        del target
        return self._wires.add_output(channel)

    def register_gate(self, gate: Gate) -> None:
        self._wires.add_gate(self._slot, gate)
