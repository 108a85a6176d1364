"""How the two ends of a connection prove who they are: by the attempt's token, and by certificates.

Challenge and response with HMAC-SHA256 show that both ends belong to the same attempt. Neither side
sends the token. The proof covers both nonces, the attempt, the slot and the audience, so it is good
for this connection only. Data ports and the driver's control port use it, over plain sockets and
over TLS: both are a `Connection`.

1. The server sends the protocol's name and a nonce.
2. The client answers with its attempt, its slot, a nonce and its proof.
3. The server sends its verdict and, if that is yes, its own proof.

If the connection is encrypted, this happens inside TLS 1.3, where both ends have shown a
certificate of one authority. Names in certificates are not compared: slots come and go at any
address, and the authority belongs to this installation.

Source: Flink's `security.ssl.internal`, mutual and without host names.
"""

import errno
import hmac
import os
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec, Protocol, TypeVar

from pipelines.domain.errors import CertificateRefused, ProtocolError, Rejected
from pipelines.domain.ids import Attempt
from pipelines.domain.run import TlsFiles


class Connection(Protocol):
    """A stream of bytes in both directions. One thread may read while another one writes."""

    def recv(self, count: int, /) -> bytes: ...

    def recv_into(self, buffer: memoryview, count: int = 0, flags: int = 0, /) -> int: ...

    def sendall(self, content: bytes | memoryview, /) -> None: ...

    def sendmsg(self, parts: Iterable[memoryview], /) -> int: ...

    def settimeout(self, seconds: float | None, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


PROTOCOL = b"ftdash/1"
NONCE_BYTES = 32
PROOF_BYTES = 32
CLAIM = struct.Struct("<QI")  # attempt, slot
HELLO_BYTES = len(PROTOCOL) + NONCE_BYTES
ANSWER_BYTES = CLAIM.size + NONCE_BYTES + PROOF_BYTES
HANDSHAKE_TIMEOUT_MS = 5_000
DRIVER = "driver"
"""The audience of the control port; the audience of a data port is its slot."""


class Refusal(StrEnum):
    """Why a connection was turned away; the value completes a sentence."""

    MALFORMED = "it did not speak the protocol in time"
    OLDER_ATTEMPT = "it belongs to an older attempt"
    NEWER_ATTEMPT = "it belongs to a newer attempt"
    WRONG_TOKEN = "it does not know the token of the attempt, or meant to reach another peer"
    DUPLICATE = "its slot has connected before"
    TOO_MANY = "too many connections are being examined"
    NOT_TRUSTED = "it has no certificate of this installation's authority, or speaks no TLS"


ADMITTED = 0
VERDICTS = {refusal: code for code, refusal in enumerate(Refusal, start=1)}


@dataclass(frozen=True, slots=True)
class Claim:
    """A client's statement of its identity; unproven until the verdict."""

    attempt: Attempt
    slot: int


class HandshakeRefused(ProtocolError):
    """One side did not admit the other. `claim` is the client's, if it made one."""

    def __init__(self, refusal: Refusal, claim: Claim | None) -> None:
        who = f"slot {claim.slot} of attempt {claim.attempt}" if claim else "a stranger"
        super().__init__(f"{who} was refused: {refusal}")
        self.refusal = refusal
        self.claim = claim


Admit = Callable[[Claim], Refusal | None]


def verify_token(
    connection: Connection,
    token: str,
    *,
    attempt: Attempt,
    audience: str = DRIVER,
    timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
    admit: Admit = lambda claim: None,
) -> Claim:
    """The server's side. `admit` may still refuse a client that has proved its identity.

    Raises HandshakeRefused, also if the client sends nothing or disconnects.
    """
    claim: Claim | None = None
    try:
        hello, answer = _challenge(connection, timeout_ms)
        claim = Claim(*CLAIM.unpack_from(answer))
        secret = _secret(token, audience)
        refusal = _judge(claim, attempt, secret, hello, answer) or admit(claim)
        proof = bytes(PROOF_BYTES) if refusal else _proof(secret, b"server", hello, answer)
        connection.sendall(bytes([VERDICTS[refusal] if refusal else ADMITTED]) + proof)
        connection.settimeout(None)
    except (_Unanswered, OSError) as error:
        raise HandshakeRefused(Refusal.MALFORMED, claim) from error
    if refusal is not None:
        raise HandshakeRefused(refusal, claim)
    return claim


def prove_token(
    connection: Connection,
    token: str,
    *,
    attempt: Attempt,
    slot: int,
    audience: str = DRIVER,
    timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
) -> None:
    """The client's side; returns when both ends have proved their identity.

    Raises HandshakeRefused if the server refuses, ProtocolError if it does not follow the protocol
    or disconnects, OSError if the connection breaks.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    secret = _secret(token, audience)
    hello = _receive(connection, HELLO_BYTES, deadline)
    if not hello.startswith(PROTOCOL):
        raise ProtocolError(f"the peer does not speak {PROTOCOL.decode()}")
    claimed = CLAIM.pack(attempt, slot) + secrets.token_bytes(NONCE_BYTES)
    answer = claimed + _proof(secret, b"client", hello, claimed)
    connection.sendall(answer)
    verdict = _receive(connection, 1 + PROOF_BYTES, deadline)
    if verdict[0] != ADMITTED:
        raise HandshakeRefused(_refusal_of(verdict[0]), Claim(attempt, slot))
    if not hmac.compare_digest(verdict[1:], _proof(secret, b"server", hello, answer)):
        raise ProtocolError("the peer does not know the attempt's token")
    connection.settimeout(None)


class _Unanswered(ProtocolError):
    """The other side disconnected or took too long."""


def _challenge(connection: Connection, timeout_ms: int) -> tuple[bytes, bytes]:
    deadline = time.monotonic() + timeout_ms / 1000
    hello = PROTOCOL + secrets.token_bytes(NONCE_BYTES)
    connection.settimeout(timeout_ms / 1000)
    connection.sendall(hello)
    return hello, _receive(connection, ANSWER_BYTES, deadline)


def _judge(
    claim: Claim, attempt: Attempt, secret: bytes, hello: bytes, answer: bytes
) -> Refusal | None:
    # Another attempt has another token, so its number cannot be proved here.
    if claim.attempt != attempt:
        is_older = claim.attempt < attempt
        return Refusal.OLDER_ATTEMPT if is_older else Refusal.NEWER_ATTEMPT
    claimed, proof = answer[:-PROOF_BYTES], answer[-PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", hello, claimed)):
        return Refusal.WRONG_TOKEN
    return None


def _refusal_of(code: int) -> Refusal:
    for refusal, known_code in VERDICTS.items():
        if known_code == code:
            return refusal
    raise ProtocolError(f"a verdict of unknown kind {code}")


def _secret(token: str, audience: str) -> bytes:
    return hmac.digest(token.encode(), audience.encode(), "sha256")


def _proof(secret: bytes, side: bytes, hello: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, side + hello + said, "sha256")


def _receive(connection: Connection, count: int, deadline: float) -> bytes:
    """Returns exactly `count` bytes, which all arrive before the deadline, however slowly."""
    received = b""
    while len(received) < count:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise _Unanswered("the handshake took too long")
        connection.settimeout(remaining_s)
        part = connection.recv(count - len(received))
        if not part:
            raise _Unanswered("the connection ended inside the handshake")
        received += part
    return received


POLL_MS_MAX = 1_000
"""The longest wait on a descriptor: once closed, it may become another connection's."""
TIMEVAL = struct.Struct("ll")
JOIN_BYTES_MAX = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


GREETINGS = 3
"""Each side of TLS 1.3 speaks twice."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The two roles of a process, both with the same certificate."""

    _server: ssl.SSLContext
    _client: ssl.SSLContext
    _certificate: str = ""  # its file

    @classmethod
    def load(cls, files: TlsFiles) -> "Tls":
        """Raises Rejected naming the file that cannot be used."""
        return cls(
            _context(ssl.PROTOCOL_TLS_SERVER, files),
            _context(ssl.PROTOCOL_TLS_CLIENT, files),
            files.certificate,
        )

    def check(self) -> None:
        """Runs the handshake of two processes with these files in memory.

        Raises CertificateRefused if they would not trust each other now.
        """
        said, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [
            self._client.wrap_bio(answered, said),
            self._server.wrap_bio(said, answered, server_side=True),
        ]
        for side in sides * GREETINGS:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue  # it is the other side's turn
            except ssl.SSLCertVerificationError as error:
                raise CertificateRefused(
                    f"The certificate {self._certificate} is refused: {error.verify_message}."
                ) from error

    def accept(self, connection: socket.socket, timeout_ms: int) -> "TlsConnection":
        """Raises HandshakeRefused after closing `connection`."""
        try:
            return self._secured(connection, self._server, timeout_ms)
        except OSError as error:
            raise HandshakeRefused(Refusal.NOT_TRUSTED, None) from error

    def connect(self, connection: socket.socket, timeout_ms: int) -> "TlsConnection":
        """Raises ProtocolError after closing `connection`."""
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
        # Only the TCP connection: an SSLSocket that is shut down by its own method forgets that it
        # is encrypted, and would then read the rest raw.
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
