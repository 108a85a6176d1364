"""The rights in our own interface: every described address, called by each kind of caller."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from ftdash.accounts import services
from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.accounts.services import Role
from ftdash.api.own import urls
from ftdash.api.own.door import description
from ftdash.checkpoints.models import Audit
from ftdash.gameday.models import GameDay
from ftdash.jobs.models import PointComparison, PointInspection, Request
from ftdash.lab.models import Lab
from tests.web.api_callers import ADDRESSED, bearer, running
from tests.web.people import admin_user, came_in, operator_user, signed_in

pytestmark = pytest.mark.usefixtures("site", "patient")

ACT, CONFIGURE, IN_PERSON, LISTEN = "act", "configure", "in person", "listen"
NEEDED = {
    "pipelines": ACT,
    "pipelines/{name}/checkpoints": ACT,
    "pipelines/{name}/savepoints": ACT,
    "pipelines/{name}/stop": ACT,
    "pipelines/{name}/cancel": ACT,
    "pipelines/{name}/settings": ACT,
    "pipelines/{name}/retry": ACT,
    "pipelines/{name}/undo-start": ACT,
    "pipelines/{name}/faults": ACT,
    "pipelines/{name}/allowed-faults": ACT,
    "pipelines/{name}/game-days": ACT,
    "pipelines/{name}/upgrade": ACT,
    "pipelines/{name}/restore": ACT,
    "pipelines/{name}/replay-quarantine": ACT,
    "pipelines/{name}/dispose": ACT,
    "pipelines/{name}/savepoint-labels": ACT,
    "pipelines/{name}/audits": ACT,
    "savepoints/{savepoint_key}/verification": ACT,
    "savepoints/{savepoint_key}/comparison": ACT,
    "labs": ACT,
    "flink-clusters": ACT,
    "flink-clusters/{name}/remove": ACT,
    "flink-clusters/{name}/jobs/{jid}/actions": ACT,
    "watched-queries": ACT,
    "watched-queries/events": LISTEN,
    "watched-queries/{name}/limits": ACT,
    "watched-queries/{name}/remove": ACT,
    "watched-queries/{name}/savepoints": ACT,
    "watched-queries/{name}/savepoints/{key}/verification": ACT,
    "watched-queries/{name}/savepoints/{key}/shelf-life": ACT,
    "watched-queries/{name}/savepoints/{key}/deletion": ACT,
    "watched-queries/{name}/verdicts": ACT,
    "watched-queries/{name}/forks": ACT,
    "watched-queries/{name}/state": ACT,
    "alerts/{key}/acknowledgement": ACT,
    "alerts/silences": ACT,
    "alerts/silences/{key}/end": ACT,
    "alerts/rules": CONFIGURE,
    "alerts/rules/change": CONFIGURE,
    "alerts/rules/switch": CONFIGURE,
    "alerts/rules/delete": CONFIGURE,
    "alerts/channels/webhooks": CONFIGURE,
    "alerts/channels/mails": CONFIGURE,
    "alerts/channels/{channel}/test": CONFIGURE,
    "alerts/channels/{channel}/delete": CONFIGURE,
    "history/{kind}": CONFIGURE,
    "tokens": IN_PERSON,
    "tokens/{token}/revoke": IN_PERSON,
    "people": IN_PERSON,
    "people/{person}/role": IN_PERSON,
    "people/{person}/password": IN_PERSON,
    "people/{person}/deactivate": IN_PERSON,
    "people/{person}/reactivate": IN_PERSON,
}
"""The right that each changing address requires. A new address needs an entry here."""

EVERYTHING = {ACT, CONFIGURE, IN_PERSON}
CALLERS: dict[str, tuple[Callable[[], Client], set[str]]] = {
    "operator": (lambda: signed_in(operator_user()), set()),
    "token to read": (lambda: bearer(TokenScope.READ), set()),
    "token to act": (lambda: bearer(TokenScope.ACT), {ACT}),
    "token to configure": (lambda: bearer(TokenScope.CONFIGURE), {ACT, CONFIGURE}),
    "token to listen": (lambda: bearer(TokenScope.LISTEN), {LISTEN}),
    "admin": (lambda: signed_in(admin_user()), EVERYTHING),
    "admin without the CSRF token": (
        lambda: signed_in(admin_user(), enforce_csrf_checks=True),
        set(),
    ),
}
ANSWERED = {200, 202, 404, 422}
"""Whatever the result, the caller was let in."""


def test_the_table_of_rights_covers_every_address_that_changes_something() -> None:
    assert {route for route, methods in routes().items() if "post" in methods} == set(NEEDED)
    assert {method for methods in routes().values() for method in methods} == {"get", "post"}


def test_the_description_names_the_tokens_and_roles_each_address_accepts() -> None:
    told = {
        ACT: [{"token": ["act"]}, {"session": ["admin"]}],
        CONFIGURE: [{"token": ["configure"]}, {"session": ["admin"]}],
        IN_PERSON: [{"session": ["admin"]}],
        LISTEN: [{"token": ["listen"]}],
    }

    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            needed = NEEDED[path.removeprefix("/api/")] if method == "post" else None
            expected = told[needed] if needed else [{"token": ["read"]}, {"session": ["operator"]}]
            assert operation["security"] == expected, path
    assert set(described()["components"]["securitySchemes"]) == {"token", "session"}


@pytest.mark.slow
@pytest.mark.parametrize("caller", CALLERS)
def test_each_caller_may_read_and_change_only_what_its_rights_allow(caller: str) -> None:
    running()
    make, rights = CALLERS[caller]
    client = make()
    before = what_was_done()

    for route, methods in routes().items():
        address = f"/api/{route.format(**ADDRESSED)}"
        read, acted = client.get(address), post(client, address)

        may_read = {403} if LISTEN in rights else ANSWERED
        assert read.status_code in (may_read if "get" in methods else {405}), (route, read.content)
        if "post" not in methods:
            assert acted.status_code == 405, route
        elif NEEDED[route] in rights:
            assert acted.status_code in ANSWERED, (route, acted.content)
        else:
            assert acted.status_code == 403, (route, acted.content)
            assert list(acted.json()) == ["errors"]

    assert rights or what_was_done() == before


@pytest.mark.parametrize("header", [None, "Bearer wrong"])
def test_nothing_is_answered_without_a_token_or_session(header: str | None) -> None:
    running()
    before = what_was_done()
    client = Client(headers={"Authorization": header} if header else None)

    for pattern in urls.urlpatterns:
        for method in ("get", "post", "put", "delete"):
            answer = getattr(client, method)(address_of(pattern))

            # A method that is not offered is refused before the caller has to identify itself.
            assert answer.status_code in (401, 405, 429), (pattern.name, method)
            if answer.status_code != 405:
                assert list(answer.json()) == ["errors"]

    assert what_was_done() == before


def test_the_api_redirects_to_the_password_page_after_a_one_time_password() -> None:
    running()
    made = services.invite(name="eve", role=Role.ADMIN, requester="ada", reason="new here")
    client, before = came_in(made.name, made.password), what_was_done()

    for route in routes():
        address = f"/api/{route.format(**ADDRESSED)}"

        for answer in (client.get(address), post(client, address)):
            assert (answer.status_code, answer["Location"]) == (302, reverse("password")), route

    assert what_was_done() == before


@pytest.mark.parametrize(
    ("scope", "route", "words"),
    [
        (TokenScope.ACT, "tokens", "Only a signed-in admin can change people and tokens"),
        (TokenScope.CONFIGURE, "people", "Only a signed-in admin can change people and tokens"),
        (TokenScope.ACT, "alerts/rules", "a token of scope 'configure'"),
        (TokenScope.READ, "labs", "a token of scope 'act'"),
    ],
)
def test_a_refused_token_learns_which_caller_may_act(
    scope: TokenScope, route: str, words: str
) -> None:
    answer = post(bearer(scope), f"/api/{route}")

    assert answer.status_code == 403
    assert words in answer.json()["errors"][0]


@cache
def described() -> Any:
    """Making it takes as long as a hundred requests."""
    return description()


def routes() -> dict[str, set[str]]:
    """Returns each described address, without the common prefix, with its methods."""
    paths = described()["paths"]
    return {path.removeprefix("/api/"): set(methods) for path, methods in paths.items()}


def what_was_done() -> list[int]:
    kinds = (AdminAction, Audit, GameDay, Lab, PointComparison, PointInspection, Request)
    return [kind.objects.count() for kind in kinds]


def post(client: Client, address: str) -> Any:
    return client.post(address, json.dumps({"reason": "x"}), content_type="application/json")


def address_of(pattern: URLPattern) -> str:
    wanted = pattern.pattern.converters
    return reverse(f"api:{pattern.name}", kwargs={name: ADDRESSED[name] for name in wanted})
