"""Shared fixtures: the flight data, Spark, a home for a demonstration, and the wheel.

The data is written once for all runs, Spark starts once in this process, and the wheel is built
once.
"""

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ftdash.embedded.supervisor import LEDGER_NAME, end_all
from tests.flight_runs import prepare_quarter
from tests.project_wheels import built_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("flights")
    prepare_quarter(directory)
    return directory


@pytest.fixture(scope="session")
def started_spark() -> Iterator[SparkSession]:
    """Starts an ordinary Spark session, not one of a run. Its workers use this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def spark(started_spark: SparkSession) -> SparkSession:
    """A session with its own settings and views, so that no test sees those of another."""
    return started_spark.newSession()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    if (home / LEDGER_NAME).is_file():
        end_all(home / LEDGER_NAME)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the contents of the wheel, and nothing of the checkout."""
    directory = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(directory)
    return directory
