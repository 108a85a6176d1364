"""A port that stays ours, whether a server listens there yet, not any more, or never will."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ftdash.embedded.installation import LOOPBACK


@contextmanager
def reserved_port() -> Iterator[int]:
    """No process that asks for any port gets it, and a client is refused until a server listens.

    Bound but not listened on: only a server that names the port and may reuse addresses, as all of
    ours do, comes beside it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        port: int = holder.getsockname()[1]
        yield port
