"""One control connection: length-prefixed JSON frames over a socket, either way.

Sending is thread-safe. The end of the connection is the end of the slot's attempt, on both sides.
"""

import contextlib
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from pipelines.domain.errors import ProtocolError
from pipelines.runtime.control import Message

_LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 64 << 20
"""An acknowledgement lists files and committables; this is far above any honest one."""

T = TypeVar("T")


class ControlLink(Generic[T]):
    """`decoder` knows the messages that the other side may send."""

    def __init__(self, connection: socket.socket, decoder: msgspec.json.Decoder[T]) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = msgspec.json.Encoder()
        self._decoder = decoder
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Raises OSError when the connection is gone."""
        payload = self._encoder.encode(message)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> T | None:
        """The next message; None at the end of the connection.

        Raises:
            ProtocolError: a frame is too long or is not a message of the other side.
        """
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
        except msgspec.DecodeError as error:
            raise ProtocolError(f"A control frame is not a message: {error}.") from error

    def close(self) -> None:
        """Wakes a thread that is blocked in `receive`, on both sides. Harmless when repeated."""
        with contextlib.suppress(OSError):  # the other side may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read_exactly(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self._socket.recv(min(length - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
