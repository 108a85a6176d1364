"""A real OpenID provider in a process on loopback, with users and a client that it knows."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tests.polling import wait_until
from tests.reserved_ports import reserved_port

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Provider:
    """You may stop `process`."""

    issuer: str
    process: "subprocess.Popen[bytes]"

    def register(self, callback: str) -> tuple[str, str]:
        """Returns a client's id and secret.

        The provider sends users back to the address `callback`.
        """
        body = {"redirect_uris": [callback], "token_endpoint_auth_method": "client_secret_post"}
        made = httpx.post(f"{self.issuer}/oauth2/clients", json=body).raise_for_status().json()
        return made["client_id"], made["client_secret"]

    def tell(self, subject: str, claims: Mapping[str, object]) -> None:
        """Sets the claims that the provider makes about a user from now on."""
        address = f"{self.issuer}/users/{subject}"
        httpx.put(address, json=dict(claims)).raise_for_status()

    def sign_in(self, authorization: str, subject: str) -> str:
        """Signs a user in on the provider's page; returns the address it redirects to."""
        answer = httpx.post(authorization, data={"sub": subject, "action": "authorize"})
        return answer.headers["Location"]


@contextmanager
def openid_provider(*options: str, lead: tuple[str, ...] = ()) -> Iterator[Provider]:
    """`lead` comes before the command, as `faketime` does."""
    with reserved_port() as port:
        module = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), *options]
        process = subprocess.Popen([*lead, *module], stderr=subprocess.DEVNULL)
        provider = Provider(f"http://{LOOPBACK}:{port}", process)
        try:
            wait_until(lambda: is_up(provider.issuer))
            yield provider
        finally:
            process.kill()
            process.wait()


def is_up(issuer: str) -> bool:
    try:
        return httpx.get(f"{issuer}/.well-known/openid-configuration").is_success
    except httpx.HTTPError:
        return False


def person(subject: str, **claims: object) -> str:
    """Returns the option for a user whom the provider knows from the start."""
    return f"--user-claims={json.dumps({'sub': subject, **claims})}"
