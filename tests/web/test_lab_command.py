"""`manage.py lab`: what it passes on, and what its exit status says."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from pipelines.lab.options import LabOptions


@pytest.mark.parametrize("status", [0, 1, 2])
def test_it_runs_the_lab_as_asked_and_ends_as_the_lab_ends(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit) as ended:
        call_command("lab", "--json", "--seed", "9", "--no-cost")

    asked = LabOptions(seed=9, has_cost_run=False).words
    assert commands == [[sys.executable, "-m", "pipelines.lab", *asked, "--json"]]
    assert ended.value.code == status


def test_what_cannot_be_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(CommandError, match="--parallelism is 99; give a number") as refused:
        call_command("lab", "--parallelism", "99")

    assert refused.value.returncode == 2
