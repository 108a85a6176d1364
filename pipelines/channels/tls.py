"""Connections encrypted with TLS 1.3, both ends of which show a certificate of one authority.

Decides which peers to talk to; the attempt's token is proved afterwards, inside the connection.
Names in certificates are not compared: slots come and go at any address, and the authority belongs
to this installation.

Source: Flink's `security.ssl.internal`, mutual and without host names.
"""

import errno
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from pipelines.channels.handshake import HandshakeRefused, Refusal
from pipelines.domain.errors import ProtocolError, Rejected
from pipelines.domain.run import TlsFiles

POLL_MS_MAX = 1_000
"""The longest wait on a descriptor: once closed, it may become another connection's."""
TIMEVAL = struct.Struct("ll")
JOIN_BYTES_MAX = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tls:
    """The two roles of a process, both with the same certificate."""

    _server: ssl.SSLContext
    _client: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles) -> "Tls":
        """Raises Rejected naming the file that cannot be used."""
        return cls(
            _context(ssl.PROTOCOL_TLS_SERVER, files), _context(ssl.PROTOCOL_TLS_CLIENT, files)
        )

    def accept(self, connection: socket.socket, timeout_ms: int) -> "TlsConnection":
        """Raises HandshakeRefused; `connection` is closed then."""
        try:
            return self._secured(connection, self._server, timeout_ms)
        except OSError as error:
            raise HandshakeRefused(Refusal.NOT_TRUSTED, None) from error

    def connect(self, connection: socket.socket, timeout_ms: int) -> "TlsConnection":
        """Raises ProtocolError; `connection` is closed then."""
        try:
            return self._secured(connection, self._client, timeout_ms)
        except OSError as error:
            raise ProtocolError(f"no TLS connection of the same authority: {error}") from error

    def _secured(
        self, connection: socket.socket, context: ssl.SSLContext, timeout_ms: int
    ) -> "TlsConnection":
        connection.settimeout(timeout_ms / 1000)
        is_server = context is self._server
        secured = context.wrap_socket(
            connection, server_side=is_server, do_handshake_on_connect=False
        )
        try:
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        return TlsConnection(secured)


class TlsConnection:
    """Implements `Connection`. OpenSSL serves one call at a time, so no call ever waits inside.

    Guarantee: a waiting reader does not hold up a writer, and vice versa. The socket's bound on
    sending (SO_SNDTIMEO) also applies here.
    """

    def __init__(self, secured: ssl.SSLSocket) -> None:
        self._socket = secured
        self._socket.setblocking(False)
        self._lock = threading.Lock()
        self._timeout_s: float | None = None
        self._send_timeout_s = _send_timeout_s(secured)

    def recv(self, count: int, /) -> bytes:
        return self._when_possible(self._timeout_s, self._socket.recv, count)

    def recv_into(self, buffer: memoryview, count: int = 0, flags: int = 0, /) -> int:
        return self._when_possible(self._timeout_s, self._socket.recv_into, buffer)

    def sendall(self, content: bytes | memoryview, /) -> None:
        rest = memoryview(content).cast("B")
        while rest:
            bound_s = self._timeout_s or self._send_timeout_s
            rest = rest[self._when_possible(bound_s, self._socket.send, rest) :]

    def sendmsg(self, parts: Iterable[memoryview], /) -> int:
        """Sends everything. Joins small parts, each of which would be a record on the wire."""
        views = list(parts)
        length = sum(len(view) for view in views)
        for content in [b"".join(views)] if length <= JOIN_BYTES_MAX else views:
            self.sendall(content)
        return length

    def settimeout(self, seconds: float | None, /) -> None:
        self._timeout_s = seconds

    def shutdown(self, how: int, /) -> None:
        # Only the connection: by its own shutdown an SSLSocket forgets that it is encrypted, and
        # would then read the rest raw.
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _when_possible(
        self, bound_s: float | None, call: Callable[P, T], *args: P.args, **options: P.kwargs
    ) -> T:
        deadline = None if bound_s is None else time.monotonic() + bound_s
        while True:
            try:
                with self._lock:
                    return call(*args, **options)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            self._wait(event, deadline)

    def _wait(self, event: int, deadline: float | None) -> None:
        left_ms = POLL_MS_MAX if deadline is None else (deadline - time.monotonic()) * 1000
        if left_ms <= 0:
            raise TimeoutError("the peer took too long")
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        poll = select.poll()
        poll.register(descriptor, event)
        poll.poll(min(left_ms, POLL_MS_MAX))


def _send_timeout_s(connection: socket.socket) -> float | None:
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.size)
    seconds, microseconds = TIMEVAL.unpack(option)
    return seconds + microseconds / 1e6 or None


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no client resumes, and unread tickets can reset a connection
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise Rejected(
            f"The certificate {files.certificate} with the key {files.key} cannot be used for TLS:"
            f" {error}."
        ) from error
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ssl.SSLError) as error:
        raise Rejected(
            f"The certificate authority {files.authority} cannot be used for TLS: {error}."
        ) from error
    return context
