"""`ftdash new`: the new project passes its test, and its pipeline can be started."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from pipelines.flows.finding import VARIABLE, find_flow
from pipelines.local import run_local

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "own_orders"
    made.mkdir()
    call_command("new", "own_orders", str(made), stdout=StringIO())
    yield made
    for name in [name for name in sys.modules if name.startswith("own_orders")]:
        del sys.modules[name]


def test_a_new_project_has_every_file_that_a_repository_needs(project: Path) -> None:
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}

    assert files == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "own_orders/__init__.py",
        "own_orders/flow.py",
        "pyproject.toml",
        "tests/test_flow.py",
    }
    for file in files:
        text = (project / file).read_text()
        assert "project_name" not in text
        assert "{%" not in text
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert declared["name"] == "own_orders"
    points = declared["entry-points"]["ftdash.pipelines"]
    assert points == {"own_orders": "own_orders.flow:own_orders"}


@pytest.mark.slow
def test_the_tests_of_a_new_project_pass_outside_this_repository(project: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider"],
        cwd=project,
        env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_the_pipeline_of_a_new_project_is_found_and_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv(VARIABLE, "own_orders.flow:own_orders")
    data = tmp_path / "data"
    data.mkdir()
    order = {"product": "tea", "price": 3.5, "at": "2026-01-01T00:00:00Z"}
    (data / "0.jsonl").write_text(json.dumps(order) + "\n")

    flow = find_flow("own_orders.flow:own_orders")
    run_local(flow, parameters={"orders": str(data), "output": str(tmp_path / "totals")})

    (file,) = (tmp_path / "totals").glob("*.parquet")
    (row,) = pq.read_table(file).to_pylist()
    assert (row["product"], row["orders"], row["price"]) == ("tea", 1, 3.5)
    assert flow.summary == "Counts and sums orders per product and window."


def test_a_name_that_is_not_a_package_is_refused_and_no_file_is_overwritten(project: Path) -> None:
    with pytest.raises(CommandError, match="'own-orders' is not a valid project name"):
        call_command("new", "own-orders", str(project))
    with pytest.raises(CommandError, match="already exists"):
        call_command("new", "own_orders", str(project))
