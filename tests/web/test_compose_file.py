"""The compose file: valid by its schema, and hardened."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from compose_spec import PyCompose

from ftdash.settings import SECRET_VARIABLES, with_password
from tests.compose_host import CONTAINER, NOT_OURS, SECRETS, compose_file

VARIABLES = {"FTDASH_DOMAIN": "ftdash.example", "FTDASH_SECRETS": "/secrets"}
PASSWORD = "redis@secret"
OURS = ("web1", "web2", "worker", "beat", "projector")


def test_the_compose_file_follows_the_schema_of_compose() -> None:
    read = PyCompose.from_json(json.dumps(compose_file(VARIABLES)))

    read.validate()
    assert set(read.service_names()) == {*OURS, *NOT_OURS, "prepare"}


def test_secrets_are_files_and_each_service_gets_only_those_it_reads() -> None:
    file = compose_file(VARIABLES)
    files = {f"/run/secrets/{name}": name for name in file["secrets"]}

    assert {each["file"] for each in file["secrets"].values()} == {
        *("/secrets/database_password", "/secrets/redis_password")
    }
    for service in file["services"].values():
        said = json.dumps([service.get("command"), service.get("environment")])
        read = {name for place, name in files.items() if place in said}
        assert set(service.get("secrets", [])) == read
    given = {name for name in file["services"]["web1"]["environment"] if name.endswith("_FILE")}
    assert given == {"FTDASH_DATABASE_PASSWORD_FILE", "FTDASH_REDIS_PASSWORD_FILE"}
    assert given < {f"{name}_FILE" for name in SECRET_VARIABLES}


def test_redis_asks_for_the_password_that_each_of_our_services_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gives the shell command of the Redis service a stand-in that prints its standard input."""
    (tmp_path / "redis_password").write_text(f"{PASSWORD}\n")
    (tmp_path / "redis-server").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "redis-server").chmod(0o755)
    text = json.dumps(compose_file(VARIABLES)["services"])
    services = json.loads(text.replace(SECRETS, str(tmp_path)))

    path = f"{tmp_path}:{os.environ['PATH']}"
    asked = subprocess.check_output(services["redis"]["command"], env={"PATH": path}, text=True)

    assert asked == f"requirepass {PASSWORD}\n"
    for name in (*OURS, "prepare"):
        given = services[name]["environment"]
        monkeypatch.setenv("FTDASH_REDIS_PASSWORD_FILE", given["FTDASH_REDIS_PASSWORD_FILE"])
        url = with_password("FTDASH_REDIS_PASSWORD", given["FTDASH_REDIS_URL"])
        assert url == "redis://:redis%40secret@redis:6379/0"


def test_our_services_may_write_to_their_volumes_only() -> None:
    assert "${FTDASH_DOMAIN:?" in (CONTAINER / "compose.yaml").read_text()

    services = compose_file(VARIABLES)["services"]
    for name in (*OURS, "prepare"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert "ports" not in services[name]
    assert services["proxy"]["networks"] == ["front"]
    assert [name for name, each in services.items() if "front" in each["networks"]] == [
        *("web1", "web2", "proxy")
    ]
