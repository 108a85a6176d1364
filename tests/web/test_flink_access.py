"""All of Flink's routes: nothing without a token or session, and nothing beyond its rights."""

import re
from itertools import product

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from ftdash.accounts.models import TokenScope
from ftdash.api.flink import urls
from ftdash.api.flink.names import job_id
from ftdash.jobs.models import Request
from ftdash.projection.projector import Projector
from pipelines.domain.ids import Uid, operator_id
from tests.web.api_callers import bearer
from tests.web.journals import Story, new_run
from tests.web.people import admin_user, operator_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

ARGUMENTS = {
    "job": job_id("flights-1"),
    "checkpoint": "1",
    "trigger": "ab" * 16,
    "rest": "x/y",
    "vertex": operator_id(Uid("join")),
    "index": "1",
    "attempt": "0",
    "application": job_id("flights-1"),
    "manager": "flights-1-slot-0",
}
EXPECTED = {  # answers to a GET by a caller who may only read
    **dict.fromkeys(("savepoint-progress", "checkpoint-progress", "disposal-progress"), (404,)),
    **dict.fromkeys(("stop", "savepoints", "disposal", "cancel-application"), (405,)),
    **dict.fromkeys(("rescaling", "client-heartbeat"), (405,)),
    "rescaling-progress": (503,),  # Flink has it switched off
    "requirements": (500,),  # as in Flink, unless its scheduler is the adaptive one
    "cancel-by-get": (403,),
    **{f"no-{place}": (404,) for place in ("jobs", "taskmanagers", "jobmanager", "applications")},
}
ODD_VALUES = ("%00", "%F0%9F", "a" * 3000, "٣")
ACTING = ("savepoints", "stop", "checkpoints", "disposal")
ODD_BODIES = (
    b"null",
    b"[]",
    b"{",
    b"\xff",
    b'{"savepoint-path": "\\u0000"}',
    b'{"savepoint-path": "/\\u0000/x", "triggerId": ""}',
    b'{"target-directory": 5}',
    b'{"drain": {}}',
    b'{"x":' * 5000,
)
ACTS = {
    ("cancel-application", "post"),
    ("checkpoints", "post"),
    ("client-heartbeat", "patch"),
    ("disposal", "post"),
    ("job", "patch"),
    ("requirements", "put"),
    ("rescaling", "patch"),
    ("savepoints", "post"),
    ("stop", "post"),
}
"""The routes that do more than read; others answer 405."""

CHANGING = ("post", "put", "patch", "delete")
METHODS = ("get", *CHANGING)
WHO_MAY_NOT = {
    "operator": lambda: signed_in(operator_user()),
    "token to read": lambda: bearer(TokenScope.READ),
    "admin without the CSRF token": lambda: signed_in(admin_user(), enforce_csrf_checks=True),
}
NAMES = [str(pattern.name) for pattern in urls.urlpatterns]


def address(name: str, namespace: str = "flink-v1") -> str:
    pattern = next(each for each in urls.urlpatterns if each.name == name)
    assert isinstance(pattern, URLPattern)
    wanted = pattern.pattern.converters
    return reverse(f"{namespace}:{name}", kwargs={each: ARGUMENTS[each] for each in wanted})


@pytest.mark.slow
def test_nothing_is_answered_without_a_token_or_session() -> None:
    running_pipeline()

    client = Client()
    asked = [*product(NAMES, METHODS, ["flink-v1"]), *product(NAMES, ["get"], ["flink"])]

    for name, method, namespace in asked:
        answer = getattr(client, method)(address(name, namespace))

        assert answer.status_code == 401, (name, method)
        assert list(answer.json()) == ["errors"]
    assert not Request.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("caller", WHO_MAY_NOT)
def test_a_client_that_may_not_act_reads_everything_and_changes_nothing(caller: str) -> None:
    running_pipeline()
    client = WHO_MAY_NOT[caller]()

    for name in NAMES:
        read = client.get(address(name))
        assert read.status_code in EXPECTED.get(name, (200,)), (name, read.content)
        for method in CHANGING:
            acted = getattr(client, method)(address(name))
            expected = 403 if (name, method) in ACTS else 405
            assert acted.status_code == expected, (name, method, acted.content)
    assert not Request.objects.exists()


def test_an_unknown_route_is_answered_with_flinks_error_shape() -> None:
    answer = bearer().get("/v1/cluster")

    assert answer.status_code == 404
    assert answer.json() == {"errors": ["Unable to load requested file /v1/cluster."]}
    assert bearer(name="other").get("/v2/config").status_code == 404


def test_an_unsupported_method_names_the_supported_ones() -> None:
    answer = bearer().put("/v1/jobs")

    assert answer.status_code == 405
    assert "it offers GET, HEAD" in answer.json()["errors"][0]


def test_a_get_may_carry_a_body_as_flinks_command_line_sends_it() -> None:
    answer = bearer().generic("GET", "/v1/config", b"{}", content_type="application/json")

    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/json; charset=UTF-8"


@pytest.mark.slow
def test_odd_requests_cause_no_server_error() -> None:
    """The client raises exceptions that the server does not handle."""
    running_pipeline()
    client = bearer(TokenScope.ACT)

    for pattern, value in product(urls.urlpatterns, ODD_VALUES):
        path = re.sub(r"<[^>]*>", value, str(pattern.pattern))
        query = "&".join(f"{name}={value}" for name in ("get", "agg", "mode", "subtasks"))
        found = {client.get(f"/v1/{path}?{query}").status_code}
        if str(pattern.name) in ACTING and value == ODD_VALUES[0]:
            known = re.sub(r"<[^>]*>", ARGUMENTS["job"], str(pattern.pattern))
            found |= {
                client.post(f"/v1/{known}", body, content_type="application/json").status_code
                for body in ODD_BODIES
            }
        assert found <= {200, 202, 400, 404, 405}, (path, found)


def test_answers_are_not_cached() -> None:
    assert "no-store" in bearer().get("/v1/config")["Cache-Control"]


def running_pipeline() -> None:
    Story(new_run()).started().sampled().completed()
    Projector().run_once()
