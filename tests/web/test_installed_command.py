"""Commands that ask an installation, where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from ftdash.installed_command import InstalledCommand

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_home_without_an_installation_is_told_in_a_sentence(tmp_path: Path) -> None:
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
def test_whoever_asks_rows_looks_whether_there_are_any(name: str) -> None:
    assert isinstance(load_command_class(get_commands()[name], name), InstalledCommand)


def test_no_command_imports_all_pages_to_begin() -> None:
    ours = [name for name, app in get_commands().items() if str(app).startswith("ftdash.")]

    assert {"pipeline", "projector", "upgrade"} <= set(ours)
    for name in ours:
        command = load_command_class(get_commands()[name], name)
        assert not command.requires_system_checks, name
