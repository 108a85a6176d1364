"""The fixtures of all tests of the shop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from customer_service import customer_service


@pytest.fixture(scope="session")
def customers() -> Iterator[str]:
    """The address of the customer service."""
    with customer_service() as address:
        yield address


@pytest.fixture
def parameters(customers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The parameters of a run on the test's rows, which replace the servers."""
    (tmp_path / "rates").mkdir()
    monkeypatch.setenv("SHOP_REDIS", "redis://unused")
    monkeypatch.setenv("SHOP_DATABASE", "postgresql+psycopg://unused")
    return {
        "redis": "env:SHOP_REDIS",
        "rates": str(tmp_path / "rates"),
        "output": str(tmp_path / "output"),
        "customers": customers,
        "database": "env:SHOP_DATABASE",
    }
