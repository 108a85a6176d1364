"""A port that stays reserved before and after a server listens, or without any server."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ftdash.embedded.installation import LOOPBACK


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a port that no other process is given. Until a server listens, it refuses clients.

    The port is bound but not listened on. Only a server that names the port and may reuse
    addresses, as all of ours do, can share it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        port: int = holder.getsockname()[1]
        yield port
