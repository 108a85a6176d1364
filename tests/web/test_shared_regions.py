"""Regions that one tab fetched serve other tabs while they are true, and only the same role."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from ftdash.ui import events
from ftdash.ui.events import shared
from tests.polling import wait_until, wait_until_asleep_in


class Person(AnonymousUser):
    def __init__(self, *, may_act: bool) -> None:
        self._may_act = may_act

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        return self._may_act


class Regions:
    """A view that answers with the number of times it was asked."""

    __name__ = "regions"

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, request: HttpRequest, **of_address: Any) -> HttpResponse:
        self.asked += 1
        self.may_answer.wait(20)
        return HttpResponse(f"{self.asked} of {of_address}")


@pytest.fixture
def listeners(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...] | None]:
    """Returns the last message to listeners, for the test to change."""
    told: list[tuple[int, ...] | None] = [(1,)]
    monkeypatch.setattr(events, "change_counts", lambda: told[0])
    return told


def ask(view: Any, path: str = "/fleet/", *, may_act: bool = False) -> str:
    request = RequestFactory().get(path)
    request.user = Person(may_act=may_act)
    return view(request, name="flights").content.decode()


def test_the_next_tab_gets_the_regions_of_the_first(listeners: list[Any]) -> None:
    regions = Regions()
    view = shared(regions)

    assert ask(view) == ask(view) == "1 of {'name': 'flights'}"


def test_changed_regions_are_rendered_again(listeners: list[Any]) -> None:
    regions = Regions()
    view = shared(regions)
    ask(view)

    listeners[0] = (2,)

    assert ask(view).startswith("2 ")


@pytest.mark.parametrize("other", [{"may_act": True}, {"path": "/fleet/?run=1"}])
def test_another_role_or_address_is_rendered_separately(
    listeners: list[Any], other: dict[str, Any]
) -> None:
    regions = Regions()
    view = shared(regions)
    ask(view)

    assert ask(view, **other).startswith("2 ")


def test_without_listeners_every_request_is_rendered(listeners: list[Any]) -> None:
    regions = Regions()
    view = shared(regions)
    listeners[0] = None
    ask(view)

    assert ask(view).startswith("2 ")


def test_concurrent_requests_wait_for_the_first_rendering(listeners: list[Any]) -> None:
    regions = Regions()
    regions.may_answer.clear()
    view = shared(regions)
    with ThreadPoolExecutor(8) as tabs:
        asking = [tabs.submit(ask, view) for _ in range(8)]
        wait_until_asleep_in(ask, threads=8)
        regions.may_answer.set()
        answers = {each.result(20) for each in asking}

    assert len(answers) == regions.asked == 1


def test_shared_regions_expire_even_without_a_change(listeners: list[Any]) -> None:
    regions = Regions()
    view = shared(regions)
    ask(view)

    wait_until(lambda: not ask(view).startswith("1 "))


def test_the_buttons_of_an_admin_are_not_given_to_an_operator(
    listeners: list[Any], admin: Client, operator: Client
) -> None:
    address = "/regions/"

    assert b"Start a pipeline" in admin.get(address).content
    assert b"Start a pipeline" not in operator.get(address).content
    assert len(events._content.cache) >= 2
