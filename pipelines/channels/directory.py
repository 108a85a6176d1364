"""Which gate reads a channel, known as gates are registered; peers may ask before that."""

import threading

from pipelines.channels.gate import Gate
from pipelines.channels.incoming import WaitingChannel
from pipelines.domain.errors import ProtocolError, check
from pipelines.domain.ids import ChannelId


class RegisteredGates:
    """Brings each channel and its gate together, whichever comes first; implements `GateDirectory`.

    A channel that waits has no credit, so waiting costs one entry and no records.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[ChannelId, Gate] = {}
        self._waiting: dict[ChannelId, WaitingChannel] = {}

    def register(self, gate: Gate) -> None:
        with self._lock:
            for channel in gate.channels:
                check(channel not in self._gates, "a channel has one gate", channel=channel)
                self._gates[channel] = gate
            arrived = [self._waiting.pop(c) for c in gate.channels if c in self._waiting]
        for waiting in arrived:
            waiting.on_gate(gate)

    def bind(self, channel: ChannelId, waiting: WaitingChannel) -> None:
        with self._lock:
            gate = self._gates.get(channel)
            if gate is None and channel in self._waiting:
                raise ProtocolError(f"channel {channel} was opened by two peers")
            if gate is None:
                self._waiting[channel] = waiting
        if gate is not None:
            waiting.on_gate(gate)

    def gate_of(self, channel: ChannelId) -> Gate:
        with self._lock:
            check(channel in self._gates, "the gate of a local channel is registered first")
            return self._gates[channel]

    def close_all(self) -> None:
        with self._lock:
            gates = list({id(gate): gate for gate in self._gates.values()}.values())
        for gate in gates:
            gate.close()
