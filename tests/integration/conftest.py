"""The data of the flights, written once for all runs."""

from pathlib import Path

import pytest

from pipelines.flows.flight_data import prepare


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("flights")
    prepare(directory)
    return directory
