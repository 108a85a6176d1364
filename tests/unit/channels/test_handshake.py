"""The handshake admits only holders of the token, and never sends the token itself."""

import socket
import threading
from collections.abc import Iterator

import pytest

from pipelines.channels.handshake import (
    ANSWER_BYTES,
    CLAIM,
    PROTOCOL,
    Claim,
    HandshakeRefused,
    Refusal,
    prove_token,
    verify_token,
)
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt

TOKEN = "0123456789abcdef0123456789abcdef"
Ends = tuple[socket.socket, socket.socket]


def test_both_ends_of_one_attempt_admit_each_other(ends: Ends) -> None:
    server = Server(ends[0])

    prove_token(ends[1], TOKEN, attempt=Attempt(3), slot=1)

    assert server.outcome() == Claim(Attempt(3), 1)
    assert [end.gettimeout() for end in ends] == [None, None]


@pytest.mark.parametrize(
    ("token", "attempt", "audience", "refusal"),
    [
        ("f" * 32, 3, "driver", Refusal.WRONG_TOKEN),
        (TOKEN, 3, "data port of slot 2", Refusal.WRONG_TOKEN),
        (TOKEN, 2, "driver", Refusal.OLDER_ATTEMPT),
        (TOKEN, 4, "driver", Refusal.NEWER_ATTEMPT),
    ],
)
def test_a_stranger_is_refused_on_both_sides(
    ends: Ends, token: str, attempt: int, audience: str, refusal: Refusal
) -> None:
    server = Server(ends[0])

    with pytest.raises(HandshakeRefused) as refused:
        prove_token(ends[1], token, attempt=Attempt(attempt), slot=1, audience=audience)

    outcome = server.outcome()
    assert isinstance(outcome, HandshakeRefused)
    assert (outcome.refusal, outcome.claim) == (refusal, Claim(Attempt(attempt), 1))
    assert refused.value.refusal is refusal


def test_a_recorded_answer_is_refused_on_another_connection(ends: Ends) -> None:
    recording = Recording(ends[1])
    Server(ends[0])
    prove_token(recording, TOKEN, attempt=Attempt(3), slot=1)  # type: ignore[arg-type]

    with_second = socket.socketpair()
    server = Server(with_second[0])
    with_second[1].sendall(recording.sent)

    outcome = server.outcome()
    assert isinstance(outcome, HandshakeRefused)
    assert outcome.refusal is Refusal.WRONG_TOKEN


def test_the_token_is_never_sent(ends: Ends) -> None:
    recording = Recording(ends[1])
    Server(ends[0])

    prove_token(recording, TOKEN, attempt=Attempt(3), slot=1)  # type: ignore[arg-type]

    assert len(recording.sent) == ANSWER_BYTES
    for form in (TOKEN.encode(), bytes.fromhex(TOKEN)):
        assert form not in recording.sent + recording.received


def test_a_client_rejects_a_server_without_the_token(ends: Ends) -> None:
    server = Server(ends[0], token="f" * 32, is_lenient=True)

    with pytest.raises(ProtocolError, match="does not know the attempt's token"):
        prove_token(ends[1], TOKEN, attempt=Attempt(3), slot=1)

    server.outcome()


def test_a_listener_with_another_protocol_is_reported(ends: Ends) -> None:
    ends[0].sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(64))

    with pytest.raises(ProtocolError, match="does not speak ftdash/1"):
        prove_token(ends[1], TOKEN, attempt=Attempt(3), slot=1)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(ANSWER_BYTES - 1)])
def test_a_client_that_leaves_mid_handshake_is_refused(ends: Ends, said: bytes) -> None:
    server = Server(ends[0])
    ends[1].sendall(said)
    ends[1].shutdown(socket.SHUT_WR)

    outcome = server.outcome()

    assert isinstance(outcome, HandshakeRefused)
    assert (outcome.refusal, outcome.claim) == (Refusal.MALFORMED, None)


def test_a_silent_client_is_refused_after_the_timeout(ends: Ends) -> None:
    server = Server(ends[0], timeout_ms=20)

    outcome = server.outcome()

    assert isinstance(outcome, HandshakeRefused)
    assert outcome.refusal is Refusal.MALFORMED


def test_a_client_with_the_right_token_may_still_be_turned_away(ends: Ends) -> None:
    Server(ends[0], refusal=Refusal.DUPLICATE)

    with pytest.raises(HandshakeRefused, match="its slot has connected before"):
        prove_token(ends[1], TOKEN, attempt=Attempt(3), slot=1)


class Server:
    """Runs `verify_token` in a thread; a lenient server admits any caller."""

    def __init__(
        self,
        connection: socket.socket,
        token: str = TOKEN,
        timeout_ms: int = 20_000,
        refusal: Refusal | None = None,
        is_lenient: bool = False,
    ) -> None:
        self._connection = connection
        self._token, self._timeout_ms, self._refusal = token, timeout_ms, refusal
        self._outcome: Claim | HandshakeRefused | None = None
        body = self._admit_anyone if is_lenient else self._verify
        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()

    def outcome(self) -> Claim | HandshakeRefused | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._outcome

    def _verify(self) -> None:
        try:
            self._outcome = verify_token(
                self._connection,
                self._token,
                attempt=Attempt(3),
                timeout_ms=self._timeout_ms,
                admit=lambda claim: self._refusal,
            )
        except HandshakeRefused as refused:
            self._outcome = refused

    def _admit_anyone(self) -> None:
        self._connection.sendall(PROTOCOL + bytes(32))
        answer = self._connection.recv(ANSWER_BYTES, socket.MSG_WAITALL)
        self._outcome = Claim(*CLAIM.unpack_from(answer))
        self._connection.sendall(bytes(33))


class Recording:
    """A connection that keeps the bytes that pass through it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.sent = self.received = b""

    def sendall(self, part: bytes) -> None:
        self.sent += part
        self._connection.sendall(part)

    def recv(self, count: int) -> bytes:
        part = self._connection.recv(count)
        self.received += part
        return part

    def settimeout(self, timeout_s: float | None) -> None:
        self._connection.settimeout(timeout_s)


@pytest.fixture
def ends() -> Iterator[Ends]:
    server, client = socket.socketpair()
    yield server, client
    server.close()
    client.close()
