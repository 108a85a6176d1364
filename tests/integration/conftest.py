"""The data of the flights, written once for all runs; a home for a demonstration."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftdash.embedded.ledger import end_all
from ftdash.embedded.opening import LEDGER_NAME
from pipelines.flows.flight_data import prepare


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("flights")
    prepare(directory)
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    if (home / LEDGER_NAME).is_file():
        end_all(home / LEDGER_NAME)
