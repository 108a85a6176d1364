"""The writing end of one connection to another slot, and of each channel that it carries.

Owns channel numbers and the credit that comes back. The caller of `OutgoingConnection.run` decides
if a lost connection ends the attempt.
"""

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import CreditedOutput
from pipelines.channels.handshake import Connection
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.serialization import Parts, RecordsEncoder, origin_frame
from pipelines.channels.wire import (
    BACKWARD,
    Frame,
    FrameReader,
    Kind,
    bytes_of,
    frame,
    grant_of,
    mark_frame,
)
from pipelines.domain.elements import Element, EndOfInput, Records
from pipelines.domain.errors import InvariantViolated, ProtocolError, Rejected
from pipelines.domain.ids import ChannelId


class RemoteOutput(CreditedOutput):
    """Uses a connection: elements wait until the peer is there and has the channel's gate."""

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
        # Before the peer can know it, because it may end the connection at once.
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
        """Nothing more will be sent. After a normal end the peer still gets everything: a close
        with unread credit would reset the connection, and might lose the last bytes."""
        self._shut_down(socket.SHUT_WR if self.has_ended() else socket.SHUT_RDWR)

    def shut_down(self) -> None:
        """Wakes `run` and a blocked `write`. Any thread may call it."""
        self._shut_down(socket.SHUT_RDWR)

    def close(self) -> None:
        """After `run` has ended, or instead of it: writers get ChannelClosed."""
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
            with contextlib.suppress(OSError):  # not connected any more: what was wanted
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
