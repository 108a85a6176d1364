"""A real OpenID provider as a process on loopback, with people and a client that it knows."""

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
    """`process` is ours to stop."""

    issuer: str
    process: "subprocess.Popen[bytes]"

    def register(self, callback: str) -> tuple[str, str]:
        """A client's id and secret; people come back to the address `callback`."""
        body = {"redirect_uris": [callback], "token_endpoint_auth_method": "client_secret_post"}
        made = httpx.post(f"{self.issuer}/oauth2/clients", json=body).raise_for_status().json()
        return made["client_id"], made["client_secret"]

    def tell(self, subject: str, claims: Mapping[str, object]) -> None:
        """What it says of a person from now on."""
        address = f"{self.issuer}/users/{subject}"
        httpx.put(address, json=dict(claims)).raise_for_status()

    def sign_in(self, authorization: str, subject: str) -> str:
        """A person's answer to its page; the address that they are sent back to."""
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
    """The option for a person who is known from the start."""
    return f"--user-claims={json.dumps({'sub': subject, **claims})}"
