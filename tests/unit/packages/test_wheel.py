"""A wheel that cannot be used is refused in one sentence, before anything of it is imported."""

from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.packages.wheel import read_wheel
from tests.shipped_packages import shop_wheel, wheel


def test_reads_the_package_modules_and_pipelines_of_a_wheel(tmp_path: Path) -> None:
    found = read_wheel(shop_wheel(tmp_path))

    assert (found.code.package, found.code.version) == ("shipped-shop", "1.0")
    assert found.modules == {"shipped_shop"}
    assert found.flows == {"orders": "shipped_shop.flow:shop"}
    assert found.is_pure


@pytest.mark.parametrize(
    ("tag", "sentence"),
    [
        ("cp37-cp37m-manylinux2014_x86_64", "was built for cp37-cp37m-manylinux2014_x86_64, and"),
        ("cp311-cp311-win_amd64", "was built for cp311-cp311-win_amd64, and ftdash runs Python 3"),
    ],
)
def test_a_wheel_for_another_python_or_platform_is_refused(
    tmp_path: Path, tag: str, sentence: str
) -> None:
    with pytest.raises(Rejected, match=sentence):
        read_wheel(wheel(tmp_path, {"shop.py": ""}, tag=tag))


def test_a_wheel_that_requires_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"requires Python >=3.99, and ftdash runs Python 3"):
        read_wheel(wheel(tmp_path, {"shop.py": ""}, requires_python=">=3.99"))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("nowhere-1.0-py3-none-any.whl", None, "There is no file .*; name a wheel, or the folder"),
        ("shop.zip", b"", "shop.zip is no wheel: its name does not look like shop-1.0-py3"),
        (
            "shop-1.0-py3-none-any.whl",
            b"no archive",
            "cannot be read as a wheel: File is not a zip",
        ),
    ],
)
def test_a_missing_file_or_one_that_is_no_wheel_is_refused(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(Rejected, match=sentence):
        read_wheel(tmp_path / name)


@pytest.mark.parametrize("module", ["pipelines/flow.py", "ftdash/flow.py", "json.py"])
def test_a_wheel_that_would_replace_a_module_of_ftdash_or_python_is_refused(
    tmp_path: Path, module: str
) -> None:
    with pytest.raises(Rejected, match=r"which would replace the one of that name"):
        read_wheel(wheel(tmp_path, {module: ""}))


def test_a_wheel_without_a_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"holds no module"):
        read_wheel(wheel(tmp_path, {"README.md": ""}))


def test_entry_points_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"The entry points of shipped_shop-1.0-py3-none-any.whl"):
        read_wheel(wheel(tmp_path, {"shop.py": ""}, entry_points="shop = shop:shop"))
