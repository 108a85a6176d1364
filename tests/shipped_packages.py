"""Wheels of small packages, for tests that ship one."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

TAG = "py3-none-any"
SHOP = """
from pipelines.connectors.in_process import BlackHole
from pipelines.stream import Environment, flow
from tests.processes.numbers import Numbers

@flow
def shop(env: Environment) -> None:
    "VERSION"
    env.source(Numbers(10), uid="orders").sink(BlackHole(), uid="nowhere")
"""
DECLARED = "[ftdash.pipelines]\norders = shipped_shop.flow:shop\n"


def shop_wheel(
    directory: Path,
    version: str = "1.0",
    code: str = SHOP,
    more: Mapping[str, str] | None = None,
) -> Path:
    """Builds the package `shipped_shop`, whose pipeline `shop` has the version as its summary."""
    files = {
        "shipped_shop/__init__.py": "",
        "shipped_shop/flow.py": code.replace("VERSION", version),
        **(more or {}),
    }
    return wheel(directory, files, version=version, entry_points=DECLARED)


def wheel(
    directory: Path,
    files: Mapping[str, str],
    *,
    version: str = "1.0",
    tag: str = TAG,
    entry_points: str = "",
    requires_python: str = "",
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"shipped_shop-{version}-{tag}.whl"
    metadata = f"shipped_shop-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: shipped-shop\nVersion: {version}\n"
    if requires_python:
        head += f"Requires-Python: {requires_python}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{metadata}/METADATA", head)
        archive.writestr(f"{metadata}/entry_points.txt", entry_points)
    return path
