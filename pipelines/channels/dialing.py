"""Connects to the data port of a peer, and proves that both belong to the same attempt."""

import socket
from dataclasses import dataclass, field

from pipelines.channels.channel import PeerAddress
from pipelines.channels.handshake import Connection, prove_token
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.tls import Tls
from pipelines.domain.errors import ProtocolError, Retryable
from pipelines.domain.ids import Attempt


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity of one slot in one attempt, and the token."""

    slot: int
    attempt: Attempt
    token: str = field(repr=False)


KEEPALIVE_TRIES = 3
LEAST_UNANSWERED_MS = 1_000
"""The lower bound: a lost packet is sent again after some 200 ms; that is no lost peer."""


def audience_of(slot: int) -> str:
    return f"data port of slot {slot}"


def dial(
    peer: PeerAddress, own: Credentials, limits: NetworkLimits, tls: Tls | None = None
) -> Connection:
    """A connection on which both ends have proved their identity.

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
