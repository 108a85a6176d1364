"""A port that accepts nothing from callers before they prove their identity, and how to call it.

Owns the listening socket and the threads of its connections. `verify` decides which callers to
admit, and `serve` handles an admitted connection; both run in the thread of that connection. Data
ports and the driver's control port are such ports. A caller of a data port proves that both ends
belong to the same attempt.
"""

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.channels.channel import NetworkLimits, PeerAddress
from pipelines.channels.handshake import (
    Claim,
    Connection,
    HandshakeRefused,
    Refusal,
    Tls,
    prove_token,
)
from pipelines.domain.errors import ProtocolError, Retryable
from pipelines.domain.ids import Attempt

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Shortages of the process or its machine: `accept` fails, but the listener is intact."""

Verify = Callable[[Connection], Claim]
"""Raises HandshakeRefused."""

Serve = Callable[[Connection, Claim], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefusedConnection:
    """A caller that was not admitted. `claim` is what it said of itself, unproven."""

    refusal: Refusal
    address: str
    claim: Claim | None

    @property
    def attempt(self) -> Attempt:
        """The attempt that the caller claims, or 0, which no attempt has, if it claims none."""
        return self.claim.attempt if self.claim else Attempt(0)


@dataclass(frozen=True, slots=True)
class Guard:
    """A port's callbacks: prepare a fresh socket, decide whom to admit, and report what happens."""

    prepare: Callable[[socket.socket], None]
    verify: Verify
    serve: Serve
    on_refused: Callable[[RefusedConnection], None]
    on_broken: Callable[[str], None]  # says why the port accepts no more connections


class OncePerSlot:
    """Lets `verify_token` admit each slot once. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._admitted: set[int] = set()

    def __call__(self, claim: Claim) -> Refusal | None:
        with self._lock:
            if claim.slot in self._admitted:
                return Refusal.DUPLICATE
            self._admitted.add(claim.slot)
            return None


class GuardedPort:
    """One thread accepts; one thread per connection verifies and then serves it.

    Guarantee: `serve` is called only for connections that `verify` has let pass, and no more than
    `max_pending_handshakes` are verified at a time. Accepts nothing before `start`. It keeps
    accepting as long as its listener is intact. If the process runs short of files or threads,
    callers wait or are turned away until there are some again.
    """

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        limits: NetworkLimits,
        tls: Tls | None,
        guard: Guard,
    ) -> None:
        self._listener = listener
        self._name = name
        self._limits = limits
        self._tls = tls  # for new connections; the others keep theirs
        self._guard = guard
        self._admission = threading.Lock()
        self._examined: set[socket.socket] = set()
        self._refused_count = 0
        self._closed = threading.Event()
        self._is_short = False  # of files, memory or threads; it then pauses between two tries
        self._accepting: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def refused_count(self) -> int:
        return self._refused_count

    def start(self) -> None:
        """May be called again without harm."""
        if self._accepting is None:
            self._accepting = start_thread(self._accept_all, self._name)

    def secure_with(self, tls: Tls) -> None:
        """Uses `tls` for new connections from now on."""
        self._tls = tls

    def close(self) -> None:
        """Admits no more callers. Connections that are being served continue."""
        with self._admission:
            self._closed.set()
            examined = list(self._examined)
        for connection in [self._listener, *examined]:
            with contextlib.suppress(OSError):  # wakes the thread that waits in `accept`
                connection.shutdown(socket.SHUT_RDWR)
        if self._accepting is not None:
            self._accepting.join(self._limits.close_timeout_ms / 1000)
        self._listener.close()

    def _accept_all(self) -> None:
        while not self._closed.is_set():
            try:
                connection, address = self._listener.accept()
            except ConnectionAbortedError:
                continue  # the caller hung up before it was accepted
            except OSError as error:
                if error.errno in SHORTAGES:
                    self._pause(error)
                    continue
                if not self._closed.is_set():
                    self._guard.on_broken(f"the {self._name} is broken: {error}")
                return
            self._take(connection, f"{address[0]}:{address[1]}")

    def _take(self, connection: socket.socket, address: str) -> None:
        if self._may_prove(connection) and self._has_begun(connection, address):
            return
        connection.close()
        self._refuse(RefusedConnection(Refusal.TOO_MANY, address, None))

    def _may_prove(self, connection: socket.socket) -> bool:
        with self._admission:
            has_room = len(self._examined) < self._limits.max_pending_handshakes
            may_prove = has_room and not self._closed.is_set()
            if may_prove:
                self._examined.add(connection)
            return may_prove

    def _has_begun(self, connection: socket.socket, address: str) -> bool:
        """Returns False if no thread could be started for the connection."""
        try:
            start_thread(
                lambda: self._examine_and_serve(connection, address), f"{self._name} {address}"
            )
        except RuntimeError as error:
            with self._admission:
                self._examined.discard(connection)
            self._pause(error)
            return False
        self._is_short = False
        return True

    def _pause(self, shortage: OSError | RuntimeError) -> None:
        if not self._is_short:
            log.warning("The %s takes no connection at the moment: %s", self._name, shortage)
        self._is_short = True
        self._closed.wait(self._limits.shortage_pause_ms / 1000)

    def _examine_and_serve(self, accepted: socket.socket, address: str) -> None:
        try:
            connection, claim = self._examine(accepted)
        except HandshakeRefused as refused:
            self._refuse(RefusedConnection(refused.refusal, address, refused.claim))
            return
        finally:
            with self._admission:
                self._examined.discard(accepted)
        self._guard.serve(connection, claim)

    def _examine(self, accepted: socket.socket) -> tuple[Connection, Claim]:
        """Raises HandshakeRefused after closing the connection."""
        connection: Connection = accepted
        try:
            self._guard.prepare(accepted)
            if self._tls is not None:
                connection = self._tls.accept(accepted, self._limits.handshake_timeout_ms)
            return connection, self._guard.verify(connection)
        except OSError as error:  # it was gone before the handshake
            connection.close()
            raise HandshakeRefused(Refusal.MALFORMED, None) from error
        except HandshakeRefused:
            connection.close()
            raise

    def _refuse(self, refused: RefusedConnection) -> None:
        with self._admission:
            self._refused_count += 1
            is_closed = self._closed.is_set()
        if not is_closed:
            self._guard.on_refused(refused)


def start_thread(body: Callable[[], None], name: str) -> threading.Thread:
    # A daemon thread: a process that has to end must not wait for its peers.
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity of one slot in one attempt, and the token."""

    slot: int
    attempt: Attempt
    token: str = field(repr=False)


KEEPALIVE_TRIES = 3
LEAST_UNANSWERED_MS = 1_000
"""The lower bound: a lost packet is sent again after some 200 ms, which is no lost peer."""


def audience_of(slot: int) -> str:
    return f"data port of slot {slot}"


def dial(
    peer: PeerAddress, own: Credentials, limits: NetworkLimits, tls: Tls | None = None
) -> Connection:
    """Returns a connection on which both ends have proved their identity.

    Raises Retryable if the peer cannot be reached, ProtocolError if one side refuses the other.
    """
    where = f"slot {peer.slot} at {peer.host}:{peer.port}"
    address, timeout_s = (peer.host, peer.port), limits.connect_timeout_ms / 1000
    try:
        dialled = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise Retryable(f"{where} cannot be reached: {error}") from error
    connection: Connection = dialled
    try:
        tune(dialled, limits.unanswered_ms)
        if tls is not None:
            connection = tls.connect(dialled, limits.handshake_timeout_ms)
        _prove(connection, peer, own, limits)
    except ProtocolError as error:
        connection.close()
        raise ProtocolError(f"{where}: {error}") from error
    except OSError as error:
        connection.close()
        raise Retryable(f"{where} went away while connecting: {error}") from error
    return connection


def tune(connection: socket.socket, unanswered_ms: int) -> None:
    """Send small frames at once, and notice a peer whose machine or network has vanished.

    Without these bounds, a connection that only one side still knows lasts for hours. An idle
    connection is probed, and sent data waits for its acknowledgement, each for about
    `unanswered_ms`, but at least a second.
    """
    unanswered_ms = max(unanswered_ms, LEAST_UNANSWERED_MS)
    idle_s, interval_s = max(1, unanswered_ms // 2_500), max(1, unanswered_ms // 5_000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered_ms)


def _prove(
    connection: Connection, peer: PeerAddress, own: Credentials, limits: NetworkLimits
) -> None:
    prove_token(
        connection,
        own.token,
        attempt=own.attempt,
        slot=own.slot,
        audience=audience_of(peer.slot),
        timeout_ms=limits.handshake_timeout_ms,
    )
