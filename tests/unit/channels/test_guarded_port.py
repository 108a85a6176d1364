"""The owner of a port hears of everything that happens to the port and its callers."""

import errno
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from pipelines.channels import guarded_port
from pipelines.channels.channel import NetworkLimits
from pipelines.channels.guarded_port import Guard, GuardedPort, RefusedConnection
from pipelines.channels.handshake import Claim, Connection, Refusal, prove_token, verify_token
from pipelines.domain.ids import Attempt

TOKEN = secrets.token_hex(16)
TIMEOUT_S = 20.0


@pytest.fixture
def watched() -> Iterator["Watched"]:
    watched = Watched()
    yield watched
    watched.close()


def test_a_port_accepts_waiting_callers_only_once_it_starts(watched: "Watched") -> None:
    caller = watched.call()
    assert watched.heard.empty()

    watched.port.start()
    prove_token(caller, TOKEN, attempt=Attempt(1), slot=3)

    assert watched.next() == Claim(Attempt(1), 3)


def test_a_caller_that_hangs_up_early_does_not_close_the_port(watched: "Watched") -> None:
    watched.listener.accepted.put(ConnectionAbortedError())
    watched.port.start()

    prove_token(watched.call(), TOKEN, attempt=Attempt(1), slot=3)

    assert watched.next() == Claim(Attempt(1), 3)


@pytest.mark.parametrize("code", [errno.EBADF, errno.EINVAL])
def test_a_dead_listener_is_reported_as_a_broken_port(watched: "Watched", code: int) -> None:
    error = OSError(code, "the listener is dead")
    watched.listener.accepted.put(error)

    watched.port.start()

    assert watched.next() == f"the test port is broken: {error}"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_port_accepts_callers_again_after_a_shortage_of_files(
    watched: "Watched", code: int
) -> None:
    for _ in range(2):
        watched.listener.accepted.put(OSError(code, "too many"))
    watched.port.start()

    prove_token(watched.call(), TOKEN, attempt=Attempt(1), slot=3)

    assert watched.next() == Claim(Attempt(1), 3)


def test_a_caller_without_a_thread_is_turned_away_and_frees_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(NetworkLimits(shortage_pause_ms=1, max_pending_handshakes=1))
    watched.port.start()
    with monkeypatch.context() as patched:
        patched.setattr(guarded_port, "start_thread", no_thread)
        turned_away = watched.call()

        assert turned_away.recv(1) == b""
        assert watched.next() == RefusedConnection(Refusal.TOO_MANY, "caller:1", None)
    prove_token(watched.call(), TOKEN, attempt=Attempt(1), slot=3)

    assert watched.next() == Claim(Attempt(1), 3)
    watched.close()


def test_a_port_that_is_closed_while_it_pauses_ends_at_once() -> None:
    watched = Watched(NetworkLimits(shortage_pause_ms=3_600_000))
    watched.listener.accepted.put(OSError(errno.EMFILE, "too many"))
    watched.port.start()
    until(watched.listener.accepted.empty)

    watched.close()

    until(lambda: not is_accepting())


def test_closing_a_port_does_not_report_it_as_broken(watched: "Watched") -> None:
    watched.port.start()

    watched.close()

    assert watched.heard.empty()


def test_a_caller_that_is_gone_before_it_is_examined_is_refused(watched: "Watched") -> None:
    watched.prepare_fails = True
    watched.port.start()

    caller = watched.call()

    assert watched.next() == RefusedConnection(Refusal.MALFORMED, "caller:1", None)
    assert watched.port.refused_count == 1
    assert caller.recv(1) == b""


def no_thread(body: Callable[[], None], name: str) -> threading.Thread:
    raise RuntimeError("can't start new thread")


def is_accepting() -> bool:
    return any(thread.name == "test port" for thread in threading.enumerate())


def until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if holds():
            return
        waiting.wait(0.01)
    pytest.fail("it does not come true")


@dataclass(slots=True)
class ScriptedListener:
    """A listener that gives out the connections and errors that the test puts in."""

    accepted: "queue.SimpleQueue[socket.socket | Exception]" = field(
        default_factory=queue.SimpleQueue
    )

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        given = self.accepted.get(timeout=TIMEOUT_S)
        if isinstance(given, Exception):
            raise given
        return given, ("caller", 1)

    def shutdown(self, how: int) -> None:
        self.accepted.put(OSError(errno.EINVAL, "shut down"))

    def close(self) -> None:
        pass


class Watched:
    """A port and everything its owner hears: admitted claims, refusals, and the port's end."""

    def __init__(self, limits: NetworkLimits | None = None) -> None:
        self.heard: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.listener = ScriptedListener()
        self.prepare_fails = False
        self._callers: list[socket.socket] = []
        guard = Guard(self._prepare, self._verify, self._serve, self.heard.put, self.heard.put)
        self.port = GuardedPort(
            self.listener,  # type: ignore[arg-type]
            "test port",
            limits or NetworkLimits(shortage_pause_ms=1),
            None,
            guard,
        )

    def call(self) -> socket.socket:
        caller, accepted = socket.socketpair()
        caller.settimeout(TIMEOUT_S)
        self._callers.append(caller)
        self.listener.accepted.put(accepted)
        return caller

    def next(self) -> object:
        return self.heard.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        self.port.close()
        for caller in self._callers:
            caller.close()

    def _prepare(self, accepted: socket.socket) -> None:
        if self.prepare_fails:
            raise OSError(errno.ENOTCONN, "gone")

    def _verify(self, connection: Connection) -> Claim:
        return verify_token(connection, TOKEN, attempt=Attempt(1))

    def _serve(self, connection: Connection, claim: Claim) -> None:
        self.heard.put(claim)
        connection.close()
