"""A process with an author's code starts with allowed variables only."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from ftdash import settings as configuration
from ftdash.command_line import development
from ftdash.jobs import fresh_code
from ftdash.jobs.author_environment import environment_of_authors
from ftdash.jobs.directories import run_directory
from ftdash.supervision import launcher
from ftdash.upgrades import services as upgrades
from tests.planted_variables import OWN, SECRETS, UNNAMED, WORD, plant, unexpected
from tests.polling import wait_until
from tests.web.journals import new_run

TELLS = """
import json, sys
from pathlib import Path
seen = [Path(f"/proc/self/{name}").read_text().split("\\0") for name in ("environ", "cmdline")]
print(json.dumps([*seen, sys.stdin.read(), sys.stdin.read()]))
"""
"""A driver that says what it was started with."""


def test_only_allowed_variables_pass(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    plant(monkeypatch, settings)
    for name in ("LC_TIME", "AWS_REGION", "HADOOP_CONF_DIR", "FTDASH_STORAGE_ROOTS"):
        monkeypatch.setenv(name, "given")

    passed = environment_of_authors()

    assert unexpected(passed.keys()) == set()
    assert passed[OWN] == "an author's own"
    assert {"LC_TIME", "AWS_REGION", "HADOOP_CONF_DIR", "FTDASH_STORAGE_ROOTS"} < passed.keys()
    assert WORD not in passed.values()


def test_a_secret_does_not_pass_even_if_a_pattern_matches(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    plant(monkeypatch, settings)
    settings.PIPELINE_VARIABLES = frozenset({"FTDASH_*", "OTEL_*", "COMPANY_*"})

    passed = environment_of_authors()

    assert passed.keys() & set(SECRETS) == set()
    assert passed.keys() >= {"COMPANY_KEY", "FTDASH_MAIL_USER"} < set(UNNAMED)


@pytest.mark.slow
def test_a_driver_starts_without_secrets_and_reads_the_redis_address_once(
    site: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    plant(monkeypatch, settings)
    settings.DRIVER_COMMAND = [sys.executable, "-c", TELLS]
    settings.REDIS_URL = f"redis://:{WORD}@127.0.0.1:6379/0"
    run = new_run()
    directory = run_directory(run)
    directory.path.mkdir(parents=True)

    launcher.start_driver(run)
    wait_until(lambda: directory.driver_log.read_text().endswith("]\n"))

    environ, words, first, second = json.loads(directory.driver_log.read_text())
    variables = dict(each.split("=", 1) for each in environ if each)
    assert unexpected(variables.keys()) == set()
    assert WORD not in "".join((*variables.values(), *words))
    assert (variables[OWN], variables["FTDASH_RUN_ID"]) == ("an author's own", run.run_id)
    assert (first, second) == (settings.REDIS_URL, "")


def test_a_process_that_a_worker_starts_asks_code_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh_code, "_staying", [])
    seen: list[list[bool]] = []
    monkeypatch.setattr(upgrades, "check", lambda _: seen.append(list(fresh_code._staying)))

    call_command("carry_out", "upgrade-check", "7")

    assert seen == [[True]]


def test_dev_passes_the_shells_variables_on_but_no_secret(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    plant(monkeypatch, settings)

    passed = development._environment()

    assert passed["COMPANY_KEY"] == WORD
    assert passed.keys() & set(SECRETS) == set()


def test_an_administrator_names_variables_and_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMES", " SHOP_REDIS, PRICES_*,")

    assert configuration.variables_of("NAMES") == {"SHOP_REDIS", "PRICES_*"}


@pytest.mark.parametrize("name", ["*", "SHOP_*_KEY", "1ST", "SHOP-KEY", "[A]*"])
def test_what_is_no_name_of_a_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NAMES", f"SHOP_REDIS,{name}")

    with pytest.raises(ImproperlyConfigured, match="which is no name of a variable"):
        configuration.variables_of("NAMES")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_of_the_control_plane_cannot_be_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NAMES", name)

    with pytest.raises(ImproperlyConfigured, match=f"{name}, a secret of the control plane"):
        configuration.variables_of("NAMES")
