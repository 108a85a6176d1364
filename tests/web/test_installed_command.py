"""Rules for all commands: they need an installation, start quickly, and hand over to a program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from ftdash.installed_command import InstalledCommand

ROOT = Path(__file__).parents[2]
TAKES_OVER = """
from ftdash.installed_command import run_program
run_program("teller", ["--only", "one"])
"""


@pytest.mark.slow
def test_a_home_without_an_installation_is_reported_in_one_sentence(tmp_path: Path) -> None:
    environment = {key: os.environ[key] for key in os.environ if key != "FTDASH_DATABASE_URL"}

    ran = subprocess.run(
        [sys.executable, "manage.py", "pipeline", "list"],
        cwd=ROOT,
        env=environment | {"FTDASH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 2
    assert ran.stderr.startswith(f"CommandError: There is no installation in {tmp_path}: let FT")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["api_token", "audit", "gameday", "pipeline", "projector"])
def test_a_command_that_reads_rows_checks_for_an_installation(name: str) -> None:
    assert isinstance(load_command_class(get_commands()[name], name), InstalledCommand)


def test_no_command_imports_all_pages_at_startup() -> None:
    ours = [name for name, app in get_commands().items() if str(app).startswith("ftdash.")]

    assert {"pipeline", "projector", "upgrade"} <= set(ours)
    for name in ours:
        command = load_command_class(get_commands()[name], name)
        assert not command.requires_system_checks, name


@pytest.mark.slow
def test_a_program_takes_the_place_of_its_command_so_that_signals_reach_it(tmp_path: Path) -> None:
    """The program's exit status is also that of the command."""
    (tmp_path / "teller.py").write_text(
        "import os, sys\nprint(os.getpid(), sys.argv[1:])\nsys.exit(3)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    with subprocess.Popen(
        [sys.executable, "-c", TAKES_OVER],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        told, _ = process.communicate(timeout=120)

    assert told == f"{process.pid} ['--only', 'one']\n"
    assert process.returncode == 3
