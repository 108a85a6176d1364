"""Free TCP ports on loopback."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port on which no process listens now; the first process to bind it owns it."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port_near(preferred: int) -> int:
    """`preferred` if it is free, else any free one; 0 prefers none."""
    return preferred if preferred and is_free(preferred) else free_port()
