"""One control connection: length-prefixed JSON frames over a socket, either way.

Sending is thread-safe. The end of the connection is the end of the slot's attempt, on both sides.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pipelines.channels.guarded_port import tune
from pipelines.channels.handshake import Connection
from pipelines.domain.errors import UNDECODABLE, ProtocolError, Rejected
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import Message

_LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 64 << 20
"""An acknowledgement lists files and committables; this is far above any honest one."""

SEND_TIMEOUT = struct.pack("ll", 5, 0)
"""Seconds and microseconds: a peer that hangs must not hang the sender."""

T = TypeVar("T")


def prepare(connection: socket.socket, heartbeat: Heartbeat) -> None:
    """Prepares a socket to become a control link, before it is encrypted or used."""
    tune(connection, heartbeat.timeout_ms)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)


class MessageTooLong(Rejected):
    """To send it again would end the same way."""


class ControlLink(Generic[T]):
    """`decoder` knows the messages that the other side may send. Needs a prepared connection."""

    def __init__(
        self,
        connection: Connection,
        decoder: msgspec.json.Decoder[T],
        now_ms: Callable[[], float],  # monotonic
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._heard_ms = now_ms()
        self._encoder = msgspec.json.Encoder()
        self._decoder = decoder
        self._sending = threading.Lock()

    @property
    def heard_ms(self) -> float:
        """Monotonic: when the other side was last heard, even if no one has acted on it yet."""
        return self._heard_ms

    def send(self, message: Message) -> None:
        """Raises MessageTooLong; then nothing was sent. Raises OSError if the connection is gone,
        or the other side takes nothing any more. Then the connection is closed, because half a
        frame may have been sent."""
        payload = self._encoder.encode(message)
        if len(payload) > MAX_FRAME_BYTES:
            raise MessageTooLong(
                f"A message of kind {type(message).__name__} takes {len(payload):,} bytes; at most"
                f" {MAX_FRAME_BYTES:,} can be sent."
            )
        with self._sending:
            try:
                self._connection.sendall(_LENGTH.pack(len(payload)) + payload)
            except OSError:
                self.close()
                raise

    def receive(self) -> T | None:
        """The next message; None at the end of the connection. Only one thread may call this; it
        gives the socket back when nothing more comes.

        Raises:
            ProtocolError: a frame is too long or is not a message of the other side.
        """
        try:
            message = self._receive()
        except ProtocolError:
            self._release()
            raise
        if message is None:
            self._release()
        else:
            self._heard_ms = self._now_ms()
        return message

    def close(self) -> None:
        """Wakes a thread that is blocked in `receive`, on both sides. Harmless when repeated.

        The descriptor stays with that thread. Freed too early, it would soon belong to another
        connection, and the thread would read that one's bytes.
        """
        with contextlib.suppress(OSError):  # the other side may have been faster
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> T | None:
        header = self._read_exactly(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"A control frame announces {length} bytes.")
        payload = self._read_exactly(length)
        if payload is None:
            return None
        try:
            return self._decoder.decode(payload)
        except UNDECODABLE as error:
            raise ProtocolError(f"A control frame is not a message: {error}.") from error

    def _release(self) -> None:
        self.close()
        with self._sending:
            self._connection.close()

    def _read_exactly(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self._connection.recv(min(length - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


class Pulse(threading.Thread):
    """Reports at every interval that this side lives, even when it has nothing else to say."""

    def __init__(self, heartbeat: Heartbeat, beat: Callable[[], None]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._interval_s = heartbeat.interval_ms / 1000.0
        self._beat = beat
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(self._interval_s):
            self._beat()

    def close(self) -> None:
        self._closed.set()
