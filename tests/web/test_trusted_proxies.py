"""Which proxies a real web server believes about the address of a client."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings as configuration

from ftdash.embedded import stack
from ftdash.embedded.installation import free_port
from tests.new_home import new_home
from tests.polling import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S = 180.0
LOCKED_OUT = 429
TRUSTED, UNTRUSTED = "127.0.0.1", "127.0.0.2"
"""Two addresses of this machine, from which a proxy may send."""

FAILURES = configuration.AXES_FAILURE_LIMIT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_home(tmp_path_factory.mktemp("home"))


def environment(home: Path) -> dict[str, str]:
    outside = {key: value for key, value in os.environ.items() if not key.startswith("FTDASH_")}
    settings = "tests.web.quick_hashes"  # eleven tries each, and a real hash takes half a second
    return {**outside, "FTDASH_HOME": str(home), "DJANGO_SETTINGS_MODULE": settings}


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """The address of a web server that believes `TRUSTED` and no other machine."""
    port = free_port()
    told = {**environment(home), "FTDASH_TRUSTED_PROXIES": TRUSTED}
    process = subprocess.Popen(stack.web(port).command, cwd=ROOT, env=told)
    try:
        wait_until(lambda: stack.web_answers(port), within_s=START_S)
        yield stack.web_address(port)
    finally:
        process.kill()
        process.wait()


def tries(address: str, client: str, peer: str) -> int:
    """Returns the status of a wrong password that `peer` sends for the claimed `client`."""
    transport = httpx.HTTPTransport(local_address=peer)
    headers = {"X-Forwarded-For": client}
    with httpx.Client(base_url=address, headers=headers, transport=transport) as browser:
        browser.get("login/")
        form = {"username": "ada", "password": "wrong"}
        token = browser.cookies["csrftoken"]
        return browser.post("login/", data=form, headers={"X-CSRFToken": token}).status_code


def test_behind_a_trusted_proxy_a_client_locks_out_only_itself(address: str) -> None:
    for _ in range(FAILURES):
        tries(address, "203.0.113.1", TRUSTED)

    assert tries(address, "203.0.113.1", TRUSTED) == LOCKED_OUT
    assert tries(address, "203.0.113.2", TRUSTED) != LOCKED_OUT


def test_without_a_trusted_proxy_claimed_addresses_do_not_avoid_a_lockout(address: str) -> None:
    for number in range(FAILURES):
        tries(address, f"203.0.113.{number + 10}", UNTRUSTED)

    assert tries(address, "203.0.113.99", UNTRUSTED) == LOCKED_OUT
