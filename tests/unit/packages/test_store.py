"""The store keeps each package once, unchanged, under its digest."""

from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.flows.finding import find_flow
from pipelines.packages.store import CodeStore, stored_code
from tests.shipped_packages import SHOP, shop_wheel

PROJECT = """
[project]
name = "own-orders"
version = "2.1"
requires-python = ">=3.11"

[project.entry-points."ftdash.pipelines"]
orders = "own_orders.flow:shop"
"""


def test_a_package_that_is_added_twice_is_kept_once(tmp_path: Path) -> None:
    store, given = CodeStore(tmp_path / "jobs"), shop_wheel(tmp_path)

    first, again = store.add(given), store.add(given)

    assert first == again
    assert list(store.listed()) == [first]
    assert store.file_of(first).read_bytes() == given.read_bytes()


def test_two_versions_are_kept_side_by_side_and_found_by_digest(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "jobs")
    codes = [store.add(shop_wheel(tmp_path, version)) for version in ("1.0", "1.1")]

    assert list(store.listed()) == codes
    assert store.find(codes[1].sha256[:8]) == codes[1]
    with pytest.raises(
        Rejected, match=r"There is no package here whose sha256 begins with 00000000"
    ):
        store.find("0" * 8)


def test_an_unreadable_package_hides_no_other(tmp_path: Path) -> None:
    """This happens after an upgrade to a Python that the package was not built for."""
    store = CodeStore(tmp_path / "jobs")
    codes = [store.add(shop_wheel(tmp_path, version)) for version in ("1.0", "1.1")]

    store.file_of(codes[0]).write_bytes(b"altered")

    assert list(store.listed()) == codes


@pytest.mark.parametrize("place", ["", "src"])
def test_a_project_folder_is_packed_as_its_pyproject_declares(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "project"
    package = folder / place / "own_orders"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "flow.py").write_text(SHOP)
    (folder / "tests").mkdir()
    (folder / "tests" / "__init__.py").touch()
    store = CodeStore(tmp_path / "jobs")

    code = store.add(folder)

    assert (code.package, code.version) == ("own-orders", "2.1")
    assert store.wheel(code).modules == {"own_orders"}
    assert find_flow("orders", stored_code(code, tmp_path / "jobs")).name == "shop"


def test_a_folder_gives_the_same_package_until_it_changes(tmp_path: Path) -> None:
    package = tmp_path / "own_orders"
    package.mkdir()
    (package / "__init__.py").write_text("RATE = 1\n")
    store = CodeStore(tmp_path / "jobs")

    first, again = store.add(package), store.add(package)
    (package / "__init__.py").write_text("RATE = 2\n")
    changed = store.add(package)

    assert first == again
    assert changed.sha256 != first.sha256
    assert changed.package == "own-orders"


def test_a_folder_without_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(Rejected, match=r"There is no package in .*empty; name a folder"):
        CodeStore(tmp_path / "jobs").add(tmp_path / "empty")


def test_a_project_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "orders.py").touch()
    (folder / "pyproject.toml").write_text("[project\n")

    with pytest.raises(Rejected, match=r"pyproject.toml cannot be read"):
        CodeStore(tmp_path / "jobs").add(folder)
