"""How the two ends of a data connection prove that they belong to the same attempt.

Challenge and response with HMAC-SHA256: neither side sends the token, and the proof covers both
nonces, the attempt and both slots, so that it is good for this connection only. Decides who is
admitted; encrypts nothing.

1. The server sends the protocol's name and a nonce.
2. The client answers with attempt, its slot, the slot it means to reach, a nonce and its proof.
3. The server sends its verdict and, if that is yes, its own proof.
"""

import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from enum import StrEnum

from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt

PROTOCOL = b"ftdash/1"
NONCE_BYTES = 32
PROOF_BYTES = 32
CLAIM = struct.Struct("<QII")  # attempt, from slot, to slot
HELLO_BYTES = len(PROTOCOL) + NONCE_BYTES
ANSWER_BYTES = CLAIM.size + NONCE_BYTES + PROOF_BYTES


class Refusal(StrEnum):
    """Why a connection was turned away; the value is the sentence that is shown."""

    MALFORMED = "it did not speak the protocol of data connections in time"
    OLDER_ATTEMPT = "it claims an older attempt"
    NEWER_ATTEMPT = "it claims a newer attempt"
    WRONG_TOKEN = "it does not know the token of the attempt"
    WRONG_SLOT = "it meant to reach another slot"
    DUPLICATE = "its slot is connected already"
    TOO_MANY = "too many connections wait to prove themselves"


ADMITTED = 0
VERDICTS = {refusal: code for code, refusal in enumerate(Refusal, start=1)}


@dataclass(frozen=True, slots=True)
class Claim:
    """Who a client says it is. Unproven until the verdict."""

    attempt: Attempt
    from_slot: int
    to_slot: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one slot of one attempt knows."""

    slot: int
    attempt: Attempt
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The client's answer as received, and the server's opinion of it."""

    claim: Claim
    transcript: bytes
    refusal: Refusal | None


def receive_answer(connection: socket.socket, own: Credentials, timeout_ms: int) -> Answer:
    """The server's steps 1 and 2. Raises ProtocolError or OSError if the peer does not answer."""
    deadline = time.monotonic() + timeout_ms / 1000
    hello = PROTOCOL + secrets.token_bytes(NONCE_BYTES)
    connection.settimeout(timeout_ms / 1000)
    connection.sendall(hello)
    answer = _receive(connection, ANSWER_BYTES, deadline)
    transcript, proof = hello + answer[:-PROOF_BYTES], answer[-PROOF_BYTES:]
    attempt, from_slot, to_slot = CLAIM.unpack_from(answer)
    claim = Claim(Attempt(attempt), from_slot, to_slot)
    return Answer(claim, transcript, _judge(claim, transcript, proof, own))


def send_verdict(
    connection: socket.socket, own: Credentials, answer: Answer, refusal: Refusal | None
) -> None:
    """The server's step 3. A refused peer gets no proof."""
    if refusal is not None:
        connection.sendall(bytes([VERDICTS[refusal]]) + bytes(PROOF_BYTES))
        return
    connection.sendall(bytes([ADMITTED]) + _proof(own.token, b"server", answer.transcript))
    connection.settimeout(None)


def introduce(
    connection: socket.socket, own: Credentials, to_slot: int, timeout_ms: int
) -> Refusal | None:
    """The client's side of all three steps; None when both ends have proved themselves.

    Raises ProtocolError when the server is not what was announced, OSError when it goes away.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    hello = _receive(connection, HELLO_BYTES, deadline)
    if not hello.startswith(PROTOCOL):
        raise ProtocolError(f"the data port of slot {to_slot} does not speak {PROTOCOL.decode()}")
    claim = CLAIM.pack(own.attempt, own.slot, to_slot) + secrets.token_bytes(NONCE_BYTES)
    connection.sendall(claim + _proof(own.token, b"client", hello + claim))
    verdict = _receive(connection, 1 + PROOF_BYTES, deadline)
    if verdict[0] != ADMITTED:
        return _refusal_of(verdict[0])
    if not hmac.compare_digest(verdict[1:], _proof(own.token, b"server", hello + claim)):
        raise ProtocolError(f"the data port of slot {to_slot} does not know the attempt's token")
    connection.settimeout(None)
    return None


def _judge(claim: Claim, transcript: bytes, proof: bytes, own: Credentials) -> Refusal | None:
    # Another attempt has another token, so its number can only be taken at its word.
    if claim.attempt < own.attempt:
        return Refusal.OLDER_ATTEMPT
    if claim.attempt > own.attempt:
        return Refusal.NEWER_ATTEMPT
    if not hmac.compare_digest(proof, _proof(own.token, b"client", transcript)):
        return Refusal.WRONG_TOKEN
    return None if claim.to_slot == own.slot else Refusal.WRONG_SLOT


def _refusal_of(code: int) -> Refusal:
    for refusal, known_code in VERDICTS.items():
        if known_code == code:
            return refusal
    raise ProtocolError(f"a verdict of unknown kind {code}")


def _proof(token: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(token, side + transcript, "sha256")


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes, all of them before the deadline however slowly they come."""
    received = b""
    while len(received) < count:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise ProtocolError("the handshake took too long")
        connection.settimeout(remaining_s)
        part = connection.recv(count - len(received))
        if not part:
            raise ProtocolError("the connection ended inside the handshake")
        received += part
    return received
