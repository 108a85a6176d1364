"""A real PostgreSQL server of this test's own, which can be killed and started again.

PostgreSQL refuses to run as root, so then it runs as its own user, in a directory of its own.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from ftdash.embedded.ports import free_port

START_TIMEOUT_S = 30.0
ACCOUNT = "postgres"


class NoPostgres(Exception):
    """There is none on this machine."""


@dataclass(slots=True)
class PostgresServer:
    directory: Path
    port: int
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"postgres://{ACCOUNT}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        listen = ["-c", "listen_addresses=127.0.0.1", "-k", str(self.directory)]
        self._process = subprocess.Popen(
            [
                program("postgres"),
                "-D",
                str(self.directory / "data"),
                "-p",
                str(self.port),
                *listen,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user(),
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError("PostgreSQL does not answer")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the server and to every process of it."""
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for member in family:
            if member.is_running():
                member.kill()
        psutil.wait_procs(family, timeout=10)
        self._process = None

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute(query.encode()).fetchall()

    def _answers(self) -> bool:
        try:
            return self.rows("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Raises NoPostgres."""
    program("postgres")
    directory = Path(tempfile.mkdtemp(prefix="ftdash-postgres-"))
    if os.getuid() == 0:
        shutil.chown(directory, ACCOUNT)
    server = PostgresServer(directory, free_port())
    try:
        initialize = [program("initdb"), "-D", str(directory / "data"), "-A", "trust", "-N"]
        subprocess.run(
            [*initialize, "-U", ACCOUNT], stdout=subprocess.DEVNULL, check=True, **as_user()
        )
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory)


def program(name: str) -> str:
    found = shutil.which(name) or next(
        (str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None
    )
    if found is None:
        raise NoPostgres(f"There is no {name}; install PostgreSQL.")
    return found


def as_user() -> dict[str, str]:
    return {"user": ACCOUNT, "cwd": "/"} if os.getuid() == 0 else {}
