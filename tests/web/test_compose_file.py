"""The compose file: valid by its schema, and hardened."""

import json

from compose_spec import PyCompose

from ftdash.settings import SECRET_VARIABLES
from tests.compose_host import CONTAINER, NOT_OURS, compose_file

VARIABLES = {"FTDASH_DOMAIN": "ftdash.example", "FTDASH_SECRETS": "/secrets"}
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
