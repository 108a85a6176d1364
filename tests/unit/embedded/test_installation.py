"""The environment that the processes of one installation share."""

import os
from pathlib import Path

from ftdash.embedded import installation
from ftdash.embedded.installation import environment_of
from ftdash.embedded.supervisor import MARK_VARIABLE


def test_an_installation_has_its_home_mark_and_redis(monkeypatch) -> None:
    environment = environment_of(Path("/somewhere"), os.getpid(), {"PATH": "/bin"})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert environment["FTDASH_HOME"] == "/somewhere"
    assert environment["PATH"] == "/bin"
    assert installation.is_entered()
    assert installation.own_mark() == environment[MARK_VARIABLE]
    assert installation.own_redis().url == environment["FTDASH_REDIS_URL"]


def test_a_configured_redis_is_kept_and_none_is_started(monkeypatch) -> None:
    given = {"FTDASH_REDIS_URL": "redis://example.org/0"}
    environment = environment_of(Path("/somewhere"), 1, given)
    monkeypatch.delenv("FTDASH_EMBEDDED_REDIS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert environment["FTDASH_REDIS_URL"] == "redis://example.org/0"
    assert installation.own_redis() is None


def test_an_installation_inside_another_shares_nothing_with_it() -> None:
    outer = environment_of(Path("/outer"), 1, {})
    inner = environment_of(Path("/inner"), 2, outer)

    for name in ("FTDASH_HOME", MARK_VARIABLE, "FTDASH_REDIS_URL", "FTDASH_EMBEDDED_OWNER"):
        assert inner[name] != outer[name]


def test_a_child_of_an_entered_process_is_not_entered(monkeypatch) -> None:
    monkeypatch.setenv("FTDASH_EMBEDDED_OWNER", str(os.getppid()))

    assert not installation.is_entered()
