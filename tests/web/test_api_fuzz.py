"""No request to our own interface causes a 500, whether it fits the interface's description or not.

Each run first sends the requests of `tests/kept_examples.py`, and then draws others. A failure
prints its seed, and how to keep its request. The environment variable FTDASH_FUZZ_SEED sends the
same requests again, and FTDASH_FUZZ_EXAMPLES sets how many are drawn, for every operation. Without
it, the newest commit chooses a part of the operations.
"""

import functools
import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from ftdash.accounts.models import TokenScope
from ftdash.alerts.models import Channel, ChannelKind
from ftdash.api.own import urls
from ftdash.api.own.door import description
from tests.commit_share import share_of
from tests.kept_examples import KEPT_REQUESTS, Request
from tests.web.api_callers import ADDRESSED, bearer, running
from tests.web.people import admin_user, operator_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

SEED, COUNT = "FTDASH_FUZZ_SEED", "FTDASH_FUZZ_EXAMPLES"
EXAMPLES = int(os.environ.get(COUNT, "3"))
"""The number of examples of each kind for each operation."""

SHARE = 2
"""A commit sends requests to one operation in so many."""

EXPECTED = {200, 202, 400, 404, 405, 422}

CHOSEN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: str(mode.value))
def test_no_request_is_answered_by_a_server_error(mode: GenerationMode) -> None:
    running()
    callers, statuses, drawn = Callers.new(), set(), drawn_from()
    assert urls.urlpatterns
    for kept in KEPT_REQUESTS:
        callers.send(kept)

    for found in operations():
        operation = found.ok()
        is_right = mode is GenerationMode.POSITIVE
        there = {each.name: ADDRESSED[each.name] for each in operation.path_parameters}
        cases = operation.as_strategy(
            generation_mode=mode, path_parameters=there if is_right and there else None
        )

        @seed(drawn)
        @CHOSEN
        @given(case=cases)
        def ask(case: schemathesis.Case) -> None:
            statuses.add(callers.send(request_of(case)))

        with suppress(Unsatisfiable):  # an address without parameters has nothing that can be wrong
            ask()

    assert (200 if mode is GenerationMode.POSITIVE else 422) in statuses


def operations() -> list[Any]:
    """Returns the operations that the newest commit chooses; a given number of examples, all."""
    found = list(described().get_all_operations())
    return found if COUNT in os.environ else share_of(found, SHARE)


@dataclass(frozen=True)
class Callers:
    """A person with all rights, and a listener, which alone may report events."""

    person: Client
    listener: Client

    @classmethod
    def new(cls) -> "Callers":
        return cls(whoever_may_do_all(), bearer(TokenScope.LISTEN, "job"))

    def send(self, request: Request) -> int:
        """Returns the status. The client raises exceptions that the server does not handle."""
        is_report = request.address.endswith("/watched-queries/events")
        try:
            answer = (self.listener if is_report else self.person).generic(
                request.method,
                request.address,
                request.body,
                content_type="application/json",
                QUERY_STRING=request.query,
            )
            assert answer.status_code in EXPECTED
        except Exception as error:
            error.add_note(f"To keep it, add to KEPT_REQUESTS in tests/kept_examples.py: {request}")
            raise
        return answer.status_code


@functools.cache
def described() -> schemathesis.BaseSchema:
    """The same object for both modes, because it remembers how to draw."""
    return schemathesis.openapi.from_dict(description())


def request_of(case: schemathesis.Case) -> Request:
    sent = case.as_transport_kwargs(base_url="http://testserver")
    return Request(
        str(sent["method"]),
        sent["url"].removeprefix("http://testserver"),
        urlencode(sent.get("params") or {}, doseq=True),
        body_of(sent),
    )


def drawn_from() -> int:
    """Returns the given seed, or else a random one."""
    number = int(os.environ.get(SEED) or secrets.randbelow(1 << 32))
    print(f"{SEED}={number} {COUNT}={EXAMPLES} sends the same again.")
    return number


def whoever_may_do_all() -> Client:
    """Returns a client with all rights, and makes objects to change: a user, a token, a channel."""
    operator_user(str(ADDRESSED["person"]))
    bearer(TokenScope.READ, name=str(ADDRESSED["token"]))
    Channel.objects.create(
        name=ADDRESSED["channel"],
        kind=ChannelKind.MAIL,
        address="ann@example.org",
        created_at=timezone.now(),
    )
    return signed_in(admin_user())


def body_of(sent: dict[str, object]) -> bytes:
    if "json" in sent:
        return json.dumps(sent["json"]).encode()
    data = sent.get("data") or b""
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogatepass")
