"""One connection between two slots, which sends the elements of channels or receives a peer's.

Owns the channel numbers and the credit frames that go back. The data port of a slot admits the
slots of its own attempt, each once. The callers of `IncomingConnection.run` and
`OutgoingConnection.run` decide if a lost connection ends the attempt.
"""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed, NetworkLimits
from pipelines.channels.credit import CreditedOutput
from pipelines.channels.gate import Gate, Inlet, Writer
from pipelines.channels.guarded_port import (
    Credentials,
    Guard,
    GuardedPort,
    OncePerSlot,
    RefusedConnection,
    Serve,
    audience_of,
    tune,
)
from pipelines.channels.handshake import Claim, Connection, Tls, verify_token
from pipelines.channels.wire import (
    BACKWARD,
    FORWARD,
    Frame,
    FrameReader,
    Kind,
    Parts,
    RecordsDecoder,
    RecordsEncoder,
    bytes_frame,
    bytes_of,
    frame,
    grant_frame,
    grant_of,
    mark_frame,
    mark_of,
    origin_frame,
    origins_of,
)
from pipelines.domain.elements import Element, EndOfInput, Records
from pipelines.domain.errors import InvariantViolated, ProtocolError, Rejected
from pipelines.domain.ids import ChannelId
from pipelines.domain.origins import Origins


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
    a peer that does not violates the protocol, and the connection ends.
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
        """Admits no more peers. Connections that are being served continue."""
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


class RemoteOutput(CreditedOutput):
    """An output to another slot. Elements wait until that slot is connected and has the gate."""

    def __init__(
        self,
        channel: ChannelId,
        number: int,
        connection: "OutgoingConnection",
        limits: NetworkLimits,
    ) -> None:
        super().__init__(channel)
        self.has_ended = False
        self._number = number
        self._connection = connection
        self._limits = limits
        self._encoder = RecordsEncoder(channel, number, limits)

    def _pass_on(self, element: Element) -> None:
        parts, cost_bytes = self._serialize(element)
        self.credit.take(cost_bytes)
        # Before the peer can see the end, because it may then close the connection at once.
        self.has_ended = isinstance(element, EndOfInput)
        self._connection.write(parts)

    def _serialize(self, element: Element) -> tuple[Parts, int]:
        if isinstance(element, Records):
            origin = origin_frame(self._number, element.origins, self._limits)
            parts, cost_bytes = self._encoder.encode(element.batch)
            return [origin, *parts] if origin else parts, cost_bytes
        return [mark_frame(self._number, element)], 0


class OutgoingConnection:
    """Carries all channels from this slot to one other; one thread reads the credit.

    Guarantee: writers wait for each other only while bytes go to the kernel, never for another
    channel's credit. Needs a peer that reads without pause.
    """

    def __init__(self, peer_slot: int, limits: NetworkLimits) -> None:
        self.peer_slot = peer_slot
        self.sent_bytes = 0
        self._connection: Connection | None = None
        self._limits = limits
        self._reason = f"the connection to slot {peer_slot} has ended"
        self._outputs: dict[int, RemoteOutput] = {}
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._is_closed = False

    def open(self, channel: ChannelId) -> RemoteOutput:
        """Opens a channel, even before there is a connection: then its writer waits for that too.

        Raises ChannelClosed if the connection is lost.
        """
        name = channel.encode()
        if len(name) > self._limits.max_channel_name_bytes:
            raise Rejected(f"the name of channel {channel[:80]}... is too long; shorten the uids")
        number = next(self._numbers)
        output = RemoteOutput(channel, number, self, self._limits)
        with self._sending:
            self._outputs[number] = output
            if self._connection is not None or self._is_closed:
                self._send([frame(Kind.OPEN, number, name)])
        return output

    def start(self, connection: Connection) -> None:
        """The peer has been reached: open the channels that wait for it. Raises ChannelClosed."""
        with self._sending:
            if self._is_closed:
                connection.close()
                raise ChannelClosed(self._reason)
            self._connection = connection
            for number, output in self._outputs.items():
                self._send([frame(Kind.OPEN, number, output.channel.encode())])

    def write(self, parts: Parts) -> None:
        """Writes whole frames, uninterrupted by those of other channels. Raises ChannelClosed."""
        with self._sending:
            self._send(parts)

    def run(self) -> None:
        """Returns when the peer has ended the connection after the end of all channels.

        Raises ProtocolError or OSError if the connection is lost before that.
        """
        frames = FrameReader(self._connected(), BACKWARD, self._limits)
        while (received := frames.read()) is not None:
            self._on_frame(received)
        if not self.has_ended():
            raise ProtocolError("the connection ended while channels were open")

    def has_ended(self) -> bool:
        return all(output.has_ended for output in list(self._outputs.values()))

    def finish(self) -> None:
        """Ends sending; after a normal end, the peer still gets everything.

        A close with unread credit would reset the connection, and might lose the last bytes.
        """
        self._shut_down(socket.SHUT_WR if self.has_ended() else socket.SHUT_RDWR)

    def shut_down(self) -> None:
        """Wakes `run` and a blocked `write`. Any thread may call it."""
        self._shut_down(socket.SHUT_RDWR)

    def close(self) -> None:
        """Call it after `run` has ended, or instead of it. Writers get ChannelClosed."""
        self.shut_down()
        with self._sending:  # a closed descriptor may be another socket's in a moment
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
        for output in list(self._outputs.values()):
            output.credit.close(self._reason)

    def _send(self, parts: Parts) -> None:
        if self._is_closed:
            raise ChannelClosed(self._reason)
        try:
            self.sent_bytes += _send_all(self._connected(), parts)
        except OSError as error:
            self.shut_down()  # so that `run` ends and the loss is reported
            raise ChannelClosed(f"{self._reason}: {error}") from error

    def _connected(self) -> Connection:
        if self._connection is None:
            raise InvariantViolated(f"nothing is sent to slot {self.peer_slot} before it answers")
        return self._connection

    def _shut_down(self, how: int) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):  # already disconnected, as intended
                connection.shutdown(how)

    def _on_frame(self, received: Frame) -> None:
        output = self._outputs.get(received.number)
        if output is None:
            raise ProtocolError(f"a frame for channel number {received.number}, never opened")
        match received.kind:
            case Kind.CREDIT:
                is_legal = output.credit.try_give_back(bytes_of(received))
            case Kind.GRANT:
                is_legal = output.credit.open(*grant_of(received))
            case Kind.CLOSED:
                is_legal = True
                output.credit.close(f"slot {self.peer_slot} reads {output.channel} no more")
            case _:  # the frame reader lets nothing else through
                is_legal = False
        if not is_legal:
            raise ProtocolError(f"an illegal {received.kind.name} frame for {output.channel}")


def _send_all(connection: Connection, parts: Sequence[bytes | pa.Buffer]) -> int:
    """Sends all parts in one system call if the kernel takes them all."""
    views = [memoryview(part).cast("B") for part in parts]
    sent = connection.sendmsg(views)
    for view in views:
        skipped = min(sent, len(view))
        sent -= skipped
        if skipped < len(view):
            connection.sendall(view[skipped:])
    return sum(len(view) for view in views)
