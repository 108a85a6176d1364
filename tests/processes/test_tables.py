"""Rows in PostgreSQL are exact though slots, driver and server are killed meanwhile.

A reader that looks all the time sees no row twice and none disappear.
"""

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from pipelines.domain.events import FailureOccurred
from pipelines.domain.status import JobStatus
from tests.contracts.sink_readers import Watch
from tests.postgres_server import ROLE, PostgresServer, postgres_server
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import TOTAL
from tests.processes.tables import DATABASE, NAME, TABLES

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "300"}  # 10 s; no test waits for the end
SOONER = {"execution.checkpointing.interval": "50 ms"}
SECRET = "hunter2"
PAUSE_S = 0.1
"""Between two looks, since the machine has more to do than to read."""


def test_rows_are_exact_after_every_process_is_killed_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with postgres_server(max_prepared_transactions=50) as server:
        plain, prepared = (
            Watch(partial(TableReader, server, table), lambda: TOTAL, pause_s=PAUSE_S)
            for table in TABLES
        )
        with plain, prepared:
            write_amid_kills(home, server)

            assert plain.comes_to(list(range(TOTAL)))
            assert prepared.comes_to(list(range(TOTAL)))
        for table in TABLES:
            rows = server.rows(f"select number from public.{table} order by number")
            assert rows == [(number,) for number in range(TOTAL)]
        assert server.rows("select gid from pg_prepared_xacts") == []
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def write_amid_kills(home: Path, server: PostgresServer) -> None:
    url = server.url_of("public").replace(f"{ROLE}@", f"{ROLE}:{SECRET}@")
    secret = {DATABASE: url}
    spec_fields: dict[str, object] = {"pipeline": NAME}
    with hosted_run(
        home, PACED, settings=SOONER, environment=secret, spec_fields=spec_fields
    ) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        server.kill()
        seen = len(run.of(FailureOccurred))
        run.wait_for(lambda _: len(run.of(FailureOccurred)) > seen, STEP_S)
        server.start()
        run.wait_for_more(2, STEP_S)

    run_id = run.directory.run_id
    with hosted_run(home, run_id=run_id, environment=secret, spec_fields=spec_fields) as successor:
        hurry(home)
        ended = successor.wait_until_over(STEP_S)
    assert ended.status is JobStatus.FINISHED


def test_rows_are_exact_after_the_server_fails_over_to_its_standby(tmp_path: Path) -> None:
    """The standby answers at the address of the killed server.

    At first it is read-only, as before its promotion. Then it has everything committed and
    prepared.
    """
    spec_fields: dict[str, object] = {"pipeline": NAME}
    with postgres_server(max_prepared_transactions=50) as server:
        secret = {DATABASE: server.url_of("public")}
        with (
            server.standby() as standby,
            hosted_run(
                tmp_path, PACED, settings=SOONER, environment=secret, spec_fields=spec_fields
            ) as run,
        ):
            run.wait_for_more(2, STEP_S)
            server.kill()
            standby.kill()
            standby.port = server.port
            standby.start()
            run.wait_for(lambda _: any(map(_is_read_only, run.of(FailureOccurred))), STEP_S)
            standby.execute("alter system set synchronous_standby_names = ''")
            standby.execute("select pg_promote()")
            hurry(tmp_path)
            ended = run.wait_until_over(STEP_S)

            assert ended.status is JobStatus.FINISHED
            for table in TABLES:
                rows = standby.rows(f"select number from public.{table} order by number")
                assert rows == [(number,) for number in range(TOTAL)]
            assert standby.rows("select gid from pg_prepared_xacts") == []


def _is_read_only(failure: FailureOccurred) -> bool:
    return "takes no writes now" in str(failure)


class TableReader:
    """While the server is away, it repeats its last result."""

    def __init__(self, server: PostgresServer, table: str) -> None:
        self._server = server
        self._query = f"select number from public.{table}"
        self._shown: list[int] = []

    def look(self) -> list[int]:
        with suppress(psycopg.OperationalError, psycopg.errors.UndefinedTable):
            self._shown = [int(str(number)) for (number,) in self._server.rows(self._query)]
        return self._shown

    def close(self) -> None:
        pass
