"""How the two ends of a connection prove that they belong to the same attempt.

Challenge and response with HMAC-SHA256. Neither side sends the token. The proof covers both nonces,
the attempt, the slot and the audience, so it is good for this connection only. Decides which
clients to admit; encrypts nothing. Data ports and the driver's control port use it, over plain
sockets and over TLS: both are a `Connection`.

1. The server sends the protocol's name and a nonce.
2. The client answers with its attempt, its slot, a nonce and its proof.
3. The server sends its verdict and, if that is yes, its own proof.
"""

import hmac
import secrets
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt


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
    """Exactly `count` bytes, all before the deadline, however slowly they come."""
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
