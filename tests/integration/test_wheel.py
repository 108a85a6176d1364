"""The wheel: whole, typed, and usable where there is no checkout."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_FOR_AUTHORS = ("django", "celery", "pyspark", "redis", "psycopg", "confluent_kafka", "kafka")
WITHOUT_THE_REST = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_FOR_AUTHORS!r}:
            raise ImportError(f"{{name}} is not for authors of pipelines")

sys.meta_path.insert(0, Refuse())
import pipelines.stream
print(pipelines.stream.__file__)
"""
IN_ONE_PROCESS = """
import sys
from ftdash.__main__ import main

site, quietly = sys.argv[1], ["--verbosity", "0"]
for words in (["migrate", *quietly], ["collectstatic", "--noinput", *quietly],
              ["docs", f"--directory={site}"]):
    sys.argv = ["ftdash", *words]
    main()

from django.conf import settings
from django.test import Client
answer = Client(SERVER_NAME="localhost").get("/login/")
print(settings.FTDASH_HOME, answer.status_code, "password" in answer.content.decode())
"""
"""Runs three commands and asks for a page. Each Python that loads Django takes two seconds."""

pytestmark = pytest.mark.slow


def test_authors_of_pipelines_need_neither_django_nor_celery_nor_spark(installed: Path) -> None:
    told = python(installed, "-c", WITHOUT_THE_REST)

    assert told.strip() == str(installed / "pipelines" / "stream" / "__init__.py")


def test_the_command_makes_a_home_of_the_users_and_serves_the_pages_of_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    variables = {"XDG_DATA_HOME": str(tmp_path), "FTDASH_HOME": ""}

    told = python(installed, "-c", IN_ONE_PROCESS, str(site), **variables)

    assert told.splitlines()[-1].split() == [str(tmp_path / "ftdash"), "200", "True"]
    assert (site / "reference" / "settings" / "index.html").is_file()


def test_the_wheel_is_typed_licensed_and_starts_a_command(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert wheel.name == f"ftdash-{__version__}-py3-none-any.whl"
    assert {"pipelines/py.typed", "ftdash/py.typed"} <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []
    entries = next(name for name in names if name.endswith("entry_points.txt"))
    assert "ftdash = ftdash.__main__:main" in zipfile.ZipFile(wheel).read(entries).decode()
    assert [name for name in names if name.startswith(("tests/", "bench/"))] == []


def test_the_tested_versions_satisfy_the_requirements_of_the_package() -> None:
    pinned = dict(re.findall(r"^([\w-]+)(?:\[.*\])?==(.*)$", requirements(), re.MULTILINE))
    pins = {canonicalize_name(name): pin for name, pin in pinned.items()}
    extras = [each for group in PROJECT["optional-dependencies"].values() for each in group]

    for text in [*PROJECT["dependencies"], *extras]:
        asked = Requirement(text)
        if asked.name != PROJECT["name"]:
            assert pins[canonicalize_name(asked.name)] in asked.specifier, text
            assert version(asked.name) in asked.specifier


def requirements() -> str:
    return (ROOT / "requirements.txt").read_text()


def python(installed: Path, *arguments: str, **variables: str) -> str:
    """Run Python on the installed packages, away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=installed.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
