"""Wheels as pip builds them: of this repository, and of the versions of the example `shop`."""

import shutil
import subprocess
import sys
from pathlib import Path

SHOP = Path(__file__).parents[1] / "examples" / "shop"
EARLIER = SHOP / "earlier"
GENERATED = shutil.ignore_patterns("__pycache__", ".*_cache", "dist", "*.egg-info")


def built_wheel(project: Path, directory: Path) -> Path:
    """Builds a wheel without the network: the build tools are installed here."""
    command = [sys.executable, "-m", "pip", "wheel", str(project), "--no-deps", "--quiet"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", str(directory)], check=True)
    (built,) = directory.glob("*.whl")
    return built


def shop_project(directory: Path, version: str) -> Path:
    """Makes the sources of one version, as `examples/shop/README.md` says.

    Takes the newest version, then the files of each earlier version over it, down to the wanted
    one.
    """
    project = directory / f"shop-{version}"
    shutil.copytree(SHOP, project, ignore=GENERATED)
    for each in sorted((place.name for place in EARLIER.iterdir()), reverse=True):
        if each >= version:
            shutil.copytree(EARLIER / each, project, dirs_exist_ok=True, ignore=GENERATED)
    return project


def shop_version(directory: Path, version: str) -> Path:
    """Builds the wheel of one version."""
    return built_wheel(shop_project(directory, version), directory / f"wheel-{version}")
