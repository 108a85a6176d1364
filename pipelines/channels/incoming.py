"""The reading end of one connection: delivers a peer slot's frames into the gates here.

Owns the peer's channel numbers and the credit frames that go back. The caller of
`IncomingConnection.run` decides if a lost connection ends the attempt.

The data port of one slot: admits the slots of its own attempt, each once.

The caller's `serve` reads what an admitted peer sends, in the thread of that connection.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.dialing import Credentials, audience_of, tune
from pipelines.channels.gate import Gate, Writer
from pipelines.channels.guarded_port import (
    Guard,
    GuardedPort,
    OncePerSlot,
    RefusedConnection,
    Serve,
)
from pipelines.channels.handshake import Claim, Connection, verify_token
from pipelines.channels.inlet import Inlet
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.serialization import RecordsDecoder, origins_of
from pipelines.channels.tls import Tls
from pipelines.channels.wire import (
    FORWARD,
    Frame,
    FrameReader,
    Kind,
    bytes_frame,
    frame,
    grant_frame,
    mark_of,
)
from pipelines.domain.elements import EndOfInput, Origins, Records
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import ChannelId


class GateDirectory(Protocol):
    """Finds the gate of a channel, now or when that gate is registered."""

    def bind(self, channel: ChannelId, writer: Writer) -> None: ...


@dataclass(frozen=True, slots=True)
class _PeerWriter:
    """The writer of one channel, at the other end of the connection."""

    connection: "IncomingConnection"
    number: int

    def on_gate(self, gate: Gate) -> None:
        self.connection.on_gate(self.number, gate)

    def close(self, reason: str) -> None:
        self.connection.on_reader_gone(self.number)


@dataclass(slots=True)
class _Channel:
    channel: ChannelId
    decoder: RecordsDecoder = field(default_factory=RecordsDecoder)
    inlet: Inlet | None = None
    origins: Origins = ()  # of the next batch
    is_over: bool = False  # it has ended, or its reader is gone


class IncomingConnection:
    """Reads one socket in one thread, which never waits for a reader of records.

    Guarantee: a full channel does not delay its neighbours. Needs peers that keep to their credit:
    one that does not violates the protocol, and the connection ends.
    """

    def __init__(
        self,
        connection: Connection,
        peer_slot: int,
        directory: GateDirectory,
        limits: NetworkLimits,
    ) -> None:
        self.peer_slot = peer_slot
        self._connection = connection
        self._directory = directory
        self._limits = limits
        self._frames = FrameReader(connection, FORWARD, limits)
        self._channels: dict[int, _Channel] = {}
        self._sending = threading.Lock()

    @property
    def received_bytes(self) -> int:
        return self._frames.received_bytes

    def run(self) -> None:
        """Returns when the peer has ended all its channels and then the connection.

        Raises ProtocolError or OSError when the connection is lost before that.
        """
        while (received := self._frames.read()) is not None:
            self._on_frame(received)
        unfinished = [c.channel for c in self._channels.values() if not c.is_over]
        if unfinished:
            raise ProtocolError(f"the connection ended before the input of {unfinished[0]} did")

    def on_gate(self, number: int, gate: Gate) -> None:
        """The gate of a channel is known: lets the peer send. Any thread may call it."""
        channel = self._channels[number]
        try:
            channel.inlet = gate.attach(
                channel.channel,
                return_credit=lambda count: self._send(bytes_frame(Kind.CREDIT, number, count)),
                on_close=lambda _: self.on_reader_gone(number),
            )
        except ChannelClosed:
            self.on_reader_gone(number)
        else:
            self._send(grant_frame(number, gate.capacity_bytes, channel.inlet.granted_bytes))

    def on_reader_gone(self, number: int) -> None:
        self._channels[number].is_over = True
        self._send(frame(Kind.CLOSED, number))

    def shut_down(self) -> None:
        """Wakes `run`. Any thread may call it; the socket stays allocated until `close`."""
        with contextlib.suppress(OSError):  # already disconnected, as intended
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Call it after `run` has ended."""
        self.shut_down()
        with self._sending:  # a closed descriptor may be another socket's in a moment
            self._connection.close()

    def _on_frame(self, received: Frame) -> None:
        if received.kind is Kind.OPEN:
            self._on_open(received)
            return
        channel = self._channels.get(received.number)
        if channel is None:
            raise ProtocolError(f"a frame for channel number {received.number}, never opened")
        self._on_channel_frame(channel, received)

    def _on_open(self, received: Frame) -> None:
        if received.number in self._channels:
            raise ProtocolError(f"channel number {received.number} was opened twice")
        if len(self._channels) >= self._limits.max_channels_per_connection:
            raise ProtocolError(f"more than {len(self._channels)} channels on one connection")
        channel = ChannelId(received.body.to_pybytes().decode(errors="replace"))
        self._channels[received.number] = _Channel(channel)
        self._directory.bind(channel, _PeerWriter(self, received.number))

    def _on_channel_frame(self, channel: _Channel, received: Frame) -> None:
        if channel.inlet is None:
            if not channel.is_over:
                raise ProtocolError(f"channel {channel.channel} sends before it is granted credit")
            return
        if received.kind is Kind.SCHEMA:
            channel.decoder.on_schema(received)
        elif received.kind in (Kind.RECORDS, Kind.DICTIONARIES):
            batch = channel.decoder.decode(received)
            origins, channel.origins = channel.origins, ()
            channel.inlet.offer(Records(batch, origins), received.body.size)
        elif received.kind is Kind.ORIGIN:
            channel.origins = origins_of(received)
        else:
            self._on_mark(channel, channel.inlet, received)

    def _on_mark(self, channel: _Channel, inlet: Inlet, received: Frame) -> None:
        mark = mark_of(received)
        if isinstance(mark, EndOfInput):
            channel.is_over = True
        inlet.offer(mark, 0)

    def _send(self, message: bytes) -> None:
        # A peer that cannot be reached is gone; `run` meets the same error and reports it.
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(message)


class DataServer:
    """Listens on a free port.

    Guarantee: `serve` is called only for peers that know this attempt's token, once per slot.
    """

    def __init__(
        self,
        own: Credentials,
        host: str,
        limits: NetworkLimits,
        tls: Tls | None,
        *,
        serve: Serve,
        on_refused: Callable[[RefusedConnection], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._own = own
        self._limits = limits
        self._admit = OncePerSlot()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._port = GuardedPort(
            socket.create_server((host, 0), family=family),
            f"data port of slot {own.slot}",
            limits,
            tls,
            Guard(self._prepare, self._verify, serve, on_refused, on_broken),
        )
        self._port.start()

    @property
    def port(self) -> int:
        return self._port.port

    @property
    def refused_count(self) -> int:
        return self._port.refused_count

    def close(self) -> None:
        """Admits no peer any more. Connections that are being served continue."""
        self._port.close()

    def _prepare(self, accepted: socket.socket) -> None:
        tune(accepted, self._limits.unanswered_ms)

    def _verify(self, connection: Connection) -> Claim:
        return verify_token(
            connection,
            self._own.token,
            attempt=self._own.attempt,
            audience=audience_of(self._own.slot),
            timeout_ms=self._limits.handshake_timeout_ms,
            admit=self._admit,
        )
