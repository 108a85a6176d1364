"""The command palette: its results, by the rights of the user."""

import re

import pytest
from django.test import Client

from ftdash.projection.projector import Projector
from tests.web.journals import Story, new_run
from tests.web.page_words import text_of

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture
def flights(site: object) -> None:
    Story(new_run("flights")).started().completed().completed()
    new_run("fares")
    while Projector().run_once():
        pass


def found(client: Client, words: str) -> dict[str, str]:
    page = text_of(client, f"/palette/?q={words}")
    return dict(re.findall(r'data-address="([^"]+)"><span>([^<]+)</span>', page))


@pytest.mark.usefixtures("flights")
def test_the_palette_finds_pipelines_pages_checkpoints_and_actions(admin: Client) -> None:
    assert next(iter(found(admin, "fli").items())) == ("/pipelines/flights/", "flights")
    assert found(admin, "flights+metrics") == {
        "/pipelines/flights/metrics/": "flights: metrics",
    }
    assert found(admin, "flights+2") == {
        "/pipelines/flights/checkpoints/2/": "flights: checkpoint 2"
    }
    assert "/pipelines/fares/savepoint/" in found(admin, "fares+take")
    assert found(admin, "flights+99") == {}
    assert "Nothing has this name" in text_of(admin, "/palette/?q=nothing")
    assert found(admin, "")["/incidents/"] == "Incidents"


@pytest.mark.usefixtures("flights")
def test_only_people_who_may_act_find_actions(admin: Client, operator: Client) -> None:
    assert "/start/" in found(admin, "start")
    assert "/start/" not in found(operator, "start")
    assert found(operator, "flights+cancel") == {}
    assert found(admin, "flights+cancel") != {}
    assert operator.get("/pipelines/flights/cancel/").status_code == 403


def test_the_palette_requires_a_sign_in(client: Client) -> None:
    assert client.get("/palette/").status_code == 302
