"""The compose file: what it says by its schema, and that it is hardened."""

import json

from compose_spec import PyCompose

from tests.compose_host import CONTAINER, NOT_OURS, compose_file

VARIABLES = {
    "FTDASH_DOMAIN": "ftdash.example",
    "FTDASH_DATABASE_PASSWORD": "databasesecret",
    "FTDASH_REDIS_PASSWORD": "redissecret",
}
OURS = ("web1", "web2", "worker", "beat", "projector")


def test_the_compose_file_keeps_the_schema_of_compose() -> None:
    read = PyCompose.from_json(json.dumps(compose_file(VARIABLES)))

    read.validate()
    assert set(read.service_names()) == {*OURS, *NOT_OURS, "prepare"}


def test_no_secret_has_a_default_and_ours_may_write_to_their_volumes_only() -> None:
    text = (CONTAINER / "compose.yaml").read_text()
    for name in VARIABLES:
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text

    services = compose_file(VARIABLES)["services"]
    for name in (*OURS, "prepare"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert "ports" not in services[name]
    assert services["proxy"]["networks"] == ["front"]
    assert [name for name, each in services.items() if "front" in each["networks"]] == [
        *("web1", "web2", "proxy")
    ]
