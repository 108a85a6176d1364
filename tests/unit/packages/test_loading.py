"""A process imports the code whose digest it was given, and no other code under its names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.errors import BrokenCode, InvariantViolated, Rejected
from pipelines.domain.run import ShippedCode
from pipelines.flows.finding import find_flow
from pipelines.packages.loading import LoadedCode, activate
from pipelines.packages.store import CodeStore, stored_code
from tests.shipped_packages import SHOP, shop_wheel, wheel


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package of the same name that is already imported."""
    folder = tmp_path / "installed" / "shipped_shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "flow.py").write_text(SHOP.replace("VERSION", "installed"))
    monkeypatch.syspath_prepend(str(folder.parent))
    assert find_flow("shipped_shop.flow:shop").summary == "installed"
    yield
    for name in [name for name in sys.modules if name.startswith("shipped_shop")]:
        del sys.modules[name]


def test_the_shipped_code_runs_even_if_an_installed_copy_was_imported(
    tmp_path: Path, installed: None
) -> None:
    code = loaded(tmp_path, shop_wheel(tmp_path, "1.0"))

    assert find_flow("shipped_shop.flow:shop", code).summary == "1.0"
    assert find_flow("shipped_shop.flow:shop").summary == "installed", "as it was before"


def test_one_process_can_use_two_versions_of_a_package(tmp_path: Path) -> None:
    one, other = (loaded(tmp_path, shop_wheel(tmp_path, version)) for version in ("1.0", "1.1"))

    assert [find_flow("orders", each).summary for each in (one, other, one)] == [
        "1.0",
        "1.1",
        "1.0",
    ]
    assert find_flow("orders", one).build({}).sources.keys() == {"orders"}
    assert "shipped_shop" not in sys.modules


def test_a_function_importing_more_of_its_package_gets_the_shipped_one(tmp_path: Path) -> None:
    late = SHOP.replace('    "VERSION"', "    import shipped_shop.late")
    files = {
        "shipped_shop/__init__.py": "",
        "shipped_shop/flow.py": late,
        "shipped_shop/late.py": "",
    }

    flow = find_flow("shipped_shop.flow:shop", loaded(tmp_path, wheel(tmp_path, files)))

    assert flow.build({}).sources.keys() == {"orders"}


def test_a_wheel_with_compiled_modules_is_unpacked_beside_it(tmp_path: Path) -> None:
    tag = f"cp311-cp311-{platform_tag()}"
    files = {"shipped_shop/__init__.py": "", "shipped_shop/flow.py": SHOP}
    code = loaded(tmp_path, wheel(tmp_path, files, tag=tag))

    with code.in_use():
        import shipped_shop

    assert Path(shipped_shop.__file__).is_file(), "a library cannot be loaded from an archive"


def test_an_altered_wheel_is_not_imported(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "jobs")
    code = store.add(shop_wheel(tmp_path, "1.0"))
    other = shop_wheel(tmp_path / "other", "1.0", SHOP + "\n# another line\n")
    store.file_of(code).write_bytes(other.read_bytes())

    with pytest.raises(Rejected, match=r"is not the package of this run: its sha256 is .*, and"):
        stored_code(code, tmp_path / "jobs")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    code = ShippedCode(package="shop", version="1.0", file="shop-1.0-py3-none-any.whl", sha256="ab")

    with pytest.raises(Rejected, match=r"The package shop 1.0 \(sha256 ab\) is not in"):
        stored_code(code, tmp_path)


def test_a_process_runs_the_code_of_only_one_run(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "jobs")
    one, other = (store.add(shop_wheel(tmp_path, version)) for version in ("1.0", "1.1"))

    with stored_code(one, tmp_path / "jobs").in_use():
        assert activate(one, store.place_of(one)).code == one
        with pytest.raises(InvariantViolated, match=r"a process runs the code of one run"):
            activate(other, store.place_of(other))


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("order", r"no pipeline 'order' in shipped-shop 1.0 \(sha256 .*\); did you mean 'orders'"),
        ("json.flow:shop", r"no module json.flow in shipped-shop 1.0 .*; it holds shipped_shop\."),
        ("shipped_shop.flwo:shop", r"There is no module shipped_shop.flwo in shipped-shop 1.0"),
        ("shipped_shop.flow:shpo", "There is no pipeline 'shpo' in shipped_shop.flow; did you"),
    ],
)
def test_a_name_that_is_no_pipeline_of_the_package_is_refused(
    tmp_path: Path, reference: str, sentence: str
) -> None:
    code = loaded(tmp_path, shop_wheel(tmp_path))

    with pytest.raises(Rejected, match=sentence):
        find_flow(reference, code)


def test_an_import_error_in_the_package_shows_the_authors_lines(tmp_path: Path) -> None:
    code = loaded(tmp_path, shop_wheel(tmp_path, code="import nothing_of_this_name\n"))

    with pytest.raises(
        BrokenCode, match=r"The module shipped_shop.flow cannot be imported"
    ) as error:
        find_flow("orders", code)

    assert "shipped_shop/flow.py" in error.value.traceback
    assert "import nothing_of_this_name" in error.value.traceback
    assert "/packages/" not in error.value.traceback


def loaded(tmp_path: Path, given: Path) -> LoadedCode:
    store = CodeStore(tmp_path / "jobs")
    code = stored_code(store.add(given), tmp_path / "jobs")
    assert code is not None
    return code


def platform_tag() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))
