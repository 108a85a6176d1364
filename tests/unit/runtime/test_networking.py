"""Driver and slots use the addresses that the settings give."""

import pytest

from pipelines.domain.settings.parsing import parse_settings
from pipelines.runtime.networking import driver_networking


@pytest.mark.parametrize(
    ("settings", "host", "bind_host"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"jobmanager.rpc.address": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        (
            {"jobmanager.rpc.address": "driver", "jobmanager.bind-host": "0.0.0.0"},
            "driver",
            "0.0.0.0",
        ),
    ],
)
def test_the_settings_decide_the_host_and_bind_host_of_the_driver(
    settings: dict[str, str], host: str, bind_host: str
) -> None:
    networking = driver_networking(parse_settings(settings))

    assert (networking.host, networking.bind_host) == (host, bind_host)


def test_slots_get_the_configured_host_and_bind_host() -> None:
    settings = parse_settings({"taskmanager.host": "worker", "taskmanager.bind-host": "0.0.0.0"})

    slots = driver_networking(settings).slots

    assert (slots.host, slots.bind_host) == ("worker", "0.0.0.0")
