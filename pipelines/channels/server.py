"""The data port of one slot: admits the slots of its own attempt, each once.

The caller's `serve` reads what an admitted peer sends, in the thread of that connection.
"""

import socket
from collections.abc import Callable

from pipelines.channels.connection import Connection
from pipelines.channels.dialing import Credentials, audience_of, tune
from pipelines.channels.guarded_port import (
    Guard,
    GuardedPort,
    OncePerSlot,
    RefusedConnection,
    Serve,
)
from pipelines.channels.handshake import Claim, verify_token
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.tls import Tls


class DataServer:
    """Listens on a free port.

    Guarantee: `serve` is called only for peers that know this attempt's token, once per slot.
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
        self._admit = OncePerSlot()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._port = GuardedPort(
            socket.create_server((host, 0), family=family),
            f"data port of slot {own.slot}",
            limits,
            tls,
            Guard(self._prepare, self._verify, serve, on_refused, on_broken),
        )
        self._port.start()

    @property
    def port(self) -> int:
        return self._port.port

    @property
    def refused_count(self) -> int:
        return self._port.refused_count

    def close(self) -> None:
        """Admits no peer any more. Connections that are being served continue."""
        self._port.close()

    def _prepare(self, accepted: socket.socket) -> None:
        tune(accepted, self._limits.unanswered_ms)

    def _verify(self, connection: Connection) -> Claim:
        return verify_token(
            connection,
            self._own.token,
            attempt=self._own.attempt,
            audience=audience_of(self._own.slot),
            timeout_ms=self._limits.handshake_timeout_ms,
            admit=self._admit,
        )
