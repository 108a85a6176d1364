"""All channels of one slot, local and remote, as the runtime uses them.

Order of use: create it (it listens), announce `address`, learn the peers' addresses, `connect`. You
may call `register_gate` and `output` at any time, here and on the peers. A writer may ask for a
gate before it is registered. It then waits for credit, which comes once both connection and gate
exist. Within the slot a writer passes on the same objects, without serialization.

Owns the connections and their threads. Decides that losing a connection before the end of its
channels is a failure of the attempt.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.channels.channel import ChannelClosed, NetworkLimits, Output, PeerAddress
from pipelines.channels.connection import DataServer, IncomingConnection, OutgoingConnection
from pipelines.channels.credit import CreditedOutput, cost_of
from pipelines.channels.gate import GATE_CLOSED, Gate, Writer
from pipelines.channels.guarded_port import Credentials, RefusedConnection, dial, start_thread
from pipelines.channels.handshake import Claim, Connection, Tls
from pipelines.domain.elements import Element
from pipelines.domain.errors import InvariantViolated, ProtocolError, check
from pipelines.domain.ids import Attempt, ChannelId

if TYPE_CHECKING:
    from pipelines.channels.gate import Inlet


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


class LocalOutput(CreditedOutput):
    """An output within the slot. Until `on_gate`, elements wait as on a channel without credit."""

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
        """Closes a channel whose gate may never come."""
        self.credit.close(reason)

    def _pass_on(self, element: Element) -> None:
        if self._inlet is None:
            raise InvariantViolated(f"channel {self.channel} has credit but no gate")
        cost_bytes = cost_of(element)
        self.credit.take(cost_bytes)
        self._inlet.offer(element, cost_bytes)


PeerConnection = IncomingConnection | OutgoingConnection
MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True, slots=True)
class NetworkStatistics:
    sent_bytes: int
    received_bytes: int
    open_connections: int
    refused_connections: int


class SlotNetwork:
    """The data network of one slot in one attempt.

    Guarantee: every channel is FIFO and loss-free until its EndOfInput, or `on_failure` is called
    with one sentence and writers get ChannelClosed. Needs every slot to call `connect` for all its
    peers. The callbacks come from any thread and must not block.
    """

    def __init__(
        self,
        slot: int,
        attempt: Attempt,
        token: str,
        *,
        on_failure: Callable[[str], None],
        on_refused: Callable[[RefusedConnection], None] = lambda refused: None,
        host: str = "127.0.0.1",
        bind_host: str | None = None,
        tls: Tls | None = None,
        limits: NetworkLimits | None = None,
    ) -> None:
        check(len(token) >= MIN_TOKEN_LENGTH, "the attempt's token is long enough to be a secret")
        self._own = Credentials(slot, attempt, token)
        self._host = host
        self._tls = tls
        self._limits = limits or NetworkLimits()
        self._on_failure = on_failure
        self._gates = RegisteredGates()
        self._lock = threading.Lock()
        self._is_closed = False
        self._outgoing: dict[int, OutgoingConnection] = {}
        self._incoming: list[IncomingConnection] = []
        self._threads: dict[PeerConnection, threading.Thread] = {}
        self._server = DataServer(
            self._own,
            bind_host or host,
            self._limits,
            tls,
            serve=self._serve,
            on_refused=on_refused,
            on_broken=self._fail,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the data port, as the peers reach it."""
        return self._host, self._server.port

    def register_gate(self, gate: Gate) -> None:
        self._gates.register(gate)

    def connect(self, peers: Iterable[PeerAddress]) -> None:
        """Opens one connection to each peer; `peers` may include this slot.

        Raises Retryable if a peer cannot be reached, ProtocolError if one side refuses the other.
        """
        for peer in peers:
            if peer.slot != self._own.slot:
                self._connect(peer)

    def output(self, channel: ChannelId, target_slot: int) -> Output:
        """The writing end of a channel; call it once. Raises ChannelClosed if the peer is lost."""
        if target_slot != self._own.slot:
            return self._connection_to(target_slot).open(channel)
        local = LocalOutput(channel)
        self._gates.bind(channel, local)
        return local

    def statistics(self) -> NetworkStatistics:
        with self._lock:
            return NetworkStatistics(
                sent_bytes=sum(c.sent_bytes for c in self._outgoing.values()),
                received_bytes=sum(c.received_bytes for c in self._incoming),
                open_connections=len(self._threads),
                refused_connections=self._server.refused_count,
            )

    def close(self) -> None:
        """Ends everything, gates too, within about twice `close_timeout_ms`. Calls no callback.

        1. Admit no peer; from now on nothing counts as a failure.
        2. Readers' and writers' threads get ChannelClosed.
        3. Peers receive what was sent on connections whose channels have all ended.
        4. The other connections are cut off; writers that wait for a connection learn of the end.
        """
        with self._lock:
            self._is_closed = True
            outgoing, incoming = list(self._outgoing.values()), list(self._incoming)
        self._server.close()
        self._gates.close()
        for writing in outgoing:
            writing.finish()
        self._wait_for_end_of(outgoing)
        everything: list[PeerConnection] = [*outgoing, *incoming]
        for connection in everything:
            connection.shut_down()
        self._wait_for_end_of(everything)
        for writing in outgoing:
            writing.close()

    def _connect(self, peer: PeerAddress) -> None:
        outgoing = self._connection_to(peer.slot)
        outgoing.start(dial(peer, self._own, self._limits, self._tls))
        name = f"credit from slot {peer.slot}"
        with self._lock:
            check(outgoing not in self._threads, "a peer is connected once", slot=peer.slot)
            self._threads[outgoing] = start_thread(lambda: self._supervise(outgoing), name)

    def _connection_to(self, peer_slot: int) -> OutgoingConnection:
        with self._lock:
            if self._is_closed:
                raise ChannelClosed("the data network of this slot is closed")
            if peer_slot not in self._outgoing:
                self._outgoing[peer_slot] = OutgoingConnection(peer_slot, self._limits)
            return self._outgoing[peer_slot]

    def _serve(self, connection: Connection, claim: Claim) -> None:
        incoming = IncomingConnection(connection, claim.slot, self._gates, self._limits)
        with self._lock:
            self._incoming.append(incoming)
            self._threads[incoming] = threading.current_thread()
            is_closed = self._is_closed
        if is_closed:
            incoming.shut_down()
        self._supervise(incoming)

    def _supervise(self, connection: PeerConnection) -> None:
        lost_because: Exception | None = None
        try:
            connection.run()
        except Exception as error:  # the edge of this thread: any error ends the attempt
            lost_because = error
        connection.close()
        with self._lock:
            del self._threads[connection]
        if lost_because is not None:
            self._fail(f"the connection with slot {connection.peer_slot} is lost: {lost_because}")

    def _fail(self, reason: str) -> None:
        with self._lock:
            is_closed = self._is_closed
        if not is_closed:
            self._on_failure(reason)

    def _wait_for_end_of(self, connections: Sequence[PeerConnection]) -> None:
        deadline = time.monotonic() + self._limits.close_timeout_ms / 1000
        with self._lock:
            threads = [self._threads[c] for c in connections if c in self._threads]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
