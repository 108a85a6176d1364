"""Maps channels to the gates that read them; a writer may ask before its gate is registered."""

import threading

from pipelines.channels.gate import GATE_CLOSED, Gate, Writer
from pipelines.domain.errors import ProtocolError, check
from pipelines.domain.ids import ChannelId


class RegisteredGates:
    """Connects each channel with its gate, whichever comes first; implements `GateDirectory`.

    A waiting writer has no credit, so waiting costs one entry and no records.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[ChannelId, Gate] = {}
        self._waiting: dict[ChannelId, Writer] = {}
        self._is_closed = False

    def register(self, gate: Gate) -> None:
        with self._lock:
            for channel in gate.channels:
                check(channel not in self._gates, "a channel has one gate", channel=channel)
                self._gates[channel] = gate
            arrived = [self._waiting.pop(c) for c in gate.channels if c in self._waiting]
            is_closed = self._is_closed
        for writer in arrived:
            writer.on_gate(gate)
        if is_closed:
            gate.close()

    def bind(self, channel: ChannelId, writer: Writer) -> None:
        """Raises ProtocolError if the channel has a writer already."""
        with self._lock:
            gate, is_closed = self._gates.get(channel), self._is_closed
            if gate is None and channel in self._waiting:
                raise ProtocolError(f"channel {channel} has two writers")
            if gate is None and not is_closed:
                self._waiting[channel] = writer
        if gate is not None:
            writer.on_gate(gate)
        elif is_closed:
            writer.close(GATE_CLOSED)

    def close(self) -> None:
        """Closes every gate, now and later; waiting writers learn that none will come."""
        with self._lock:
            self._is_closed = True
            gates, writers = set(self._gates.values()), list(self._waiting.values())
            self._waiting.clear()
        for gate in gates:
            gate.close()
        for writer in writers:
            writer.close(GATE_CLOSED)
