"""Reaching the data port of a peer and proving to it that we belong to the same attempt."""

import socket

from pipelines.channels.channel import PeerAddress
from pipelines.channels.handshake import Credentials, introduce
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.server import tune
from pipelines.domain.errors import ProtocolError, Retryable


def dial(peer: PeerAddress, own: Credentials, limits: NetworkLimits) -> socket.socket:
    """A connection on which both ends have proved themselves.

    Raises Retryable if the peer cannot be reached, ProtocolError if one side refuses the other.
    """
    where = f"slot {peer.slot} at {peer.host}:{peer.port}"
    address, timeout_s = (peer.host, peer.port), limits.connect_timeout_ms / 1000
    try:
        connection = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise Retryable(f"{where} cannot be reached: {error}") from error
    try:
        _prove(connection, own, peer, limits)
    except ProtocolError as error:
        connection.close()
        raise ProtocolError(f"{where}: {error}") from error
    except OSError as error:
        connection.close()
        raise Retryable(f"{where} went away while connecting: {error}") from error
    return connection


def _prove(
    connection: socket.socket, own: Credentials, peer: PeerAddress, limits: NetworkLimits
) -> None:
    tune(connection)
    refusal = introduce(connection, own, peer.slot, limits.handshake_timeout_ms)
    if refusal is not None:
        raise ProtocolError(f"slot {own.slot} of attempt {own.attempt} was refused: {refusal}")
