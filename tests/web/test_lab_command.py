"""`manage.py lab`: the options that it passes on, and those that it refuses."""

import os
import sys

import pytest
from django.core.management import CommandError, call_command

from pipelines.lab.options import LabOptions


def test_the_command_execs_the_lab_with_the_given_options(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: programs.append(words))

    call_command("lab", "--json", "--seed", "9", "--no-cost")

    asked = LabOptions(seed=9, has_cost_run=False).words
    assert programs == [[sys.executable, "-m", "pipelines.lab", *asked, "--json"]]


def test_invalid_options_are_refused_before_anything_starts() -> None:
    with pytest.raises(CommandError, match="--parallelism is 99; give a number") as refused:
        call_command("lab", "--parallelism", "99")

    assert refused.value.returncode == 2
