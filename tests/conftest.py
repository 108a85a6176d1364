"""What all tests share: a home of their own, a Java for Spark, and no silent skips in CI."""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.conf import settings

from ftdash.embedded import java

if TYPE_CHECKING:
    from tests.brokers.kafka_broker import KafkaBroker
    from tests.brokers.redis_broker import RedisBroker
    from tests.object_server import ObjectServer
    from tests.postgres_server import PostgresServer

REQUIRE_ALL = os.environ.get("FTDASH_REQUIRE_ALL") == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nemesis-seconds",
        type=float,
        default=2.4,
        help="how long processes of a run are killed; real trouble takes 120 or more",
    )


@pytest.fixture
def nemesis_s(request: pytest.FixtureRequest) -> float:
    seconds: float = request.config.getoption("--nemesis-seconds")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """Tests write to a directory of their own, not to the home of an installation."""
    home = Path(tempfile.mkdtemp(prefix="ftdash-tests-"))
    os.environ["FTDASH_HOME"] = str(home)
    if settings.configured:
        settings.FTDASH_HOME = home
        settings.JOBS_ROOT = home / "jobs"


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ["FTDASH_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.get_closest_marker("spark") for item in items):
        os.environ.update(java.environment())


@pytest.fixture(scope="session")
def objects() -> Iterator["ObjectServer"]:
    """A real object store; importing it takes long, so only who uses it does."""
    from tests.object_server import object_server

    with object_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["RedisBroker"]:
    from tests.brokers.redis_broker import redis_broker

    with redis_broker(tmp_path_factory.mktemp("redis")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaBroker"]:
    from tests.brokers.kafka_broker import kafka_broker

    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    from tests.postgres_server import postgres_server

    with postgres_server(max_prepared_transactions=1000) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.skipped:
        refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where everything is required, what a machine lacks is a failure and not an excuse."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"FTDASH_REQUIRE_ALL=1 allows no skip: {reason}"
