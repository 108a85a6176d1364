"""Sign-in by a proxy that names the user in a header, which counts only from trusted proxies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from django.test import Client

from ftdash.accounts import queries, services
from ftdash.accounts.services import Role
from ftdash.asgi import TrustsProxies
from tests.web.people import admin_user, signed_in

NAME, GROUPS = "X-Remote-User", "X-Remote-Groups"
PROXY, STRANGER = "192.0.2.7", "203.0.113.9"


@pytest.fixture(autouse=True)
def named_in_headers(site: Path, settings: Any) -> None:
    settings.REMOTE_USER_HEADER, settings.REMOTE_GROUPS_HEADER = NAME, GROUPS
    settings.OPERATOR_GROUPS, settings.ADMIN_GROUPS = frozenset({"data"}), frozenset({"platform"})


def test_the_user_named_by_the_proxy_signs_in_with_the_role_of_their_groups() -> None:
    client = Client()

    assert client.get("/", headers=named("olga", "chess, platform")).status_code == 200
    assert queries.person("olga").role is Role.ADMIN
    assert client.get("/login/", headers=named("olga", "chess, platform"))["Location"] == "/"


def test_a_session_lasts_only_while_the_proxy_names_its_user() -> None:
    client = Client()
    client.get("/", headers=named("olga", "platform"))

    other = client.get("/settings/", headers=named("otto", "data"))
    assert other.context["user"].get_username() == "otto"

    assert client.get("/").status_code == 302  # around the proxy


def test_a_change_of_groups_takes_effect_on_the_next_request() -> None:
    client = Client()
    client.get("/", headers=named("olga", "platform"))

    assert client.get("/settings/invite/", headers=named("olga", "data")).status_code == 403
    assert queries.person("olga").role is Role.OPERATOR
    refused = client.get("/", headers=named("olga", "chess"))
    assert refused.status_code == 403
    assert "none of your groups opens ftdash" in refused.content.decode()


def test_a_local_account_is_not_opened_by_a_name_in_a_header() -> None:
    admin_user("ada")

    refused = Client().get("/", headers=named("ada", "platform"))

    assert refused.status_code == 403
    assert "already has an account" in refused.content.decode()


def test_a_local_admin_keeps_the_session_that_a_password_opened() -> None:
    client = signed_in(admin_user("ada"))

    answer = client.get("/settings/", headers=named("olga", "data"))

    assert answer.context["user"].get_username() == "ada"


def test_without_the_setting_the_header_means_nothing(settings: Any) -> None:
    settings.REMOTE_USER_HEADER = ""

    assert Client().get("/", headers=named("olga", "platform")).status_code == 302


def test_the_api_accepts_the_user_of_the_proxy_but_a_token_takes_precedence() -> None:
    headers = named("olga", "platform")

    assert Client().get("/api/pipelines", headers=headers).status_code == 200
    wrong = {**headers, "Authorization": "Bearer ftd_wrong"}
    assert Client().get("/api/pipelines", headers=wrong).status_code == 401


@pytest.mark.parametrize("spelled", [NAME, NAME.lower(), NAME.replace("-", "_"), GROUPS])
def test_the_header_is_dropped_unless_a_trusted_proxy_sends_it(spelled: str) -> None:
    assert spelled.lower().encode() in heard(PROXY, {spelled: "ada"})
    assert spelled.lower().encode() not in heard(STRANGER, {spelled: "ada"})


def test_a_client_cannot_pose_as_a_proxy_by_claiming_its_address() -> None:
    claimed = {NAME: "ada", "X-Forwarded-For": PROXY}

    assert NAME.lower().encode() not in heard(STRANGER, claimed)


def test_an_admin_can_list_and_end_a_session_that_the_proxy_opened() -> None:
    client = Client()
    client.get("/", headers=named("olga", "platform"))

    (session,) = queries.sessions("olga")
    services.end_session(name="olga", key=session.key, requester="ada", reason="a lost notebook")

    assert queries.sessions("olga") == []


def named(name: str, groups: str) -> dict[str, str]:
    return {NAME: name, GROUPS: groups}


def heard(peer: str, headers: dict[str, str]) -> dict[bytes, bytes]:
    """Returns the headers that the application gets for a request from that address."""
    got: dict[bytes, bytes] = {}

    async def application(scope: Any, receive: Any, send: Callable[..., Any]) -> None:
        got.update(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> None:
        door = TrustsProxies(application, f"127.0.0.1,{PROXY}", (NAME, GROUPS))
        transport = httpx.ASGITransport(app=door, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            await client.get("/", headers=headers)

    anyio.run(ask)
    return got
