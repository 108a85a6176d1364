"""The data port of one slot: accepts connections, admits those of its own attempt.

Decides who is let in, and reports who is not. What an admitted peer then sends is read by whoever
is passed in as `serve`, in the thread of that connection.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.channels.connection import Connection
from pipelines.channels.dialing import Credentials, audience_of, tune
from pipelines.channels.handshake import Claim, HandshakeRefused, Refusal, verify_token
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.tls import Tls

Serve = Callable[[Connection, Claim], None]


@dataclass(frozen=True, slots=True)
class RefusedConnection:
    """Someone who was not let in. `claim` is what they said, not what is known."""

    refusal: Refusal
    address: str
    claim: Claim | None


class DataServer:
    """Listens on a free port; one thread accepts, one per connection proves and then serves it.

    Guarantee: `serve` is called for peers only that know the token of this attempt, once a slot.
    """

    def __init__(
        self,
        own: Credentials,
        host: str,
        limits: NetworkLimits,
        tls: Tls | None,
        *,
        serve: Serve,
        on_refused: Callable[[RefusedConnection], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._own = own
        self._limits = limits
        self._tls = tls
        self._serve = serve
        self._on_refused = on_refused
        self._on_broken = on_broken
        self._admission = threading.Lock()
        self._admitted: set[int] = set()
        self._proving: set[socket.socket] = set()
        self._refused_count = 0
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._accepting = start_thread(self._accept_all, f"data port of slot {own.slot}")

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def refused_count(self) -> int:
        return self._refused_count

    def close(self) -> None:
        """Nobody is let in any more. Connections that are served are not touched."""
        with self._admission:
            self._is_closed = True
            proving = list(self._proving)
        for connection in [self._listener, *proving]:
            with contextlib.suppress(OSError):  # wakes the thread that waits for it
                connection.shutdown(socket.SHUT_RDWR)
        self._accepting.join(self._limits.close_timeout_ms / 1000)
        self._listener.close()

    def _accept_all(self) -> None:
        while not self._is_closed:
            try:
                connection, address = self._listener.accept()
            except ConnectionAbortedError:
                continue  # the caller hung up before it was answered
            except OSError as error:
                if not self._is_closed:
                    self._on_broken(f"the data port of slot {self._own.slot} is broken: {error}")
                return
            self._examine(connection, f"{address[0]}:{address[1]}")

    def _examine(self, connection: socket.socket, address: str) -> None:
        with self._admission:
            has_room = len(self._proving) < self._limits.max_pending_handshakes
            may_prove = has_room and not self._is_closed
            if may_prove:
                self._proving.add(connection)
        if may_prove:
            start_thread(lambda: self._prove_and_serve(connection, address), f"data {address}")
            return
        connection.close()
        self._refuse(Refusal.TOO_MANY, address, None)

    def _prove_and_serve(self, accepted: socket.socket, address: str) -> None:
        connection: Connection = accepted
        try:
            tune(accepted, self._limits.unanswered_ms)
            if self._tls is not None:
                connection = self._tls.accept(accepted, self._limits.handshake_timeout_ms)
            claim = self._prove(connection)
        except HandshakeRefused as refused:
            connection.close()
            self._refuse(refused.refusal, address, refused.claim)
            return
        finally:
            with self._admission:
                self._proving.discard(accepted)
        self._serve(connection, claim)

    def _prove(self, connection: Connection) -> Claim:
        return verify_token(
            connection,
            self._own.token,
            attempt=self._own.attempt,
            audience=audience_of(self._own.slot),
            timeout_ms=self._limits.handshake_timeout_ms,
            admit=self._admit_once,
        )

    def _admit_once(self, claim: Claim) -> Refusal | None:
        with self._admission:
            if claim.slot in self._admitted:
                return Refusal.DUPLICATE
            self._admitted.add(claim.slot)
            return None

    def _refuse(self, refusal: Refusal, address: str, claim: Claim | None) -> None:
        with self._admission:
            self._refused_count += 1
            is_closed = self._is_closed
        if not is_closed:
            self._on_refused(RefusedConnection(refusal, address, claim))


def start_thread(body: Callable[[], None], name: str) -> threading.Thread:
    # A daemon thread: a slot that is told to end must not wait for its peers.
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread
