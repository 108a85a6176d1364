"""The package lists all connectors and imports each one when it is first used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pipelines.connectors as facade


@pytest.mark.parametrize("name", facade.__all__)
def test_each_name_is_its_modules_object_for_python_and_the_type_checker(
    name: str,
) -> None:
    typed = {
        each.name: node.module
        for node in ast.walk(ast.parse(Path(str(facade.__file__)).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pipelines.")
        for each in node.names
    }

    assert getattr(facade, name) is getattr(import_module(str(typed[name])), name)
    assert typed.keys() == set(facade.__all__) == set(dir(facade))


def test_an_unknown_connector_is_not_an_attribute() -> None:
    assert not hasattr(facade, "NoConnector")


@pytest.mark.slow
def test_a_client_that_is_not_installed_is_named_with_its_extra() -> None:
    program = """
import sys
sys.modules["redis"] = None
from pipelines.connectors import CsvFiles
from pipelines.connectors import RedisHashes
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )

    assert "ImportError: RedisHashes needs the package redis" in ran.stderr
    assert "install ftdash[redis]." in ran.stderr
