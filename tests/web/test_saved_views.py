"""Saved views of all pipelines: a name for the filters in an address, for one user alone."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from ftdash.accounts.models import SavedView
from ftdash.accounts.services import VIEWS_MAX, save_view
from ftdash.jobs.models import Pipeline
from ftdash.projection.projector import Projector
from pipelines.domain.errors import Rejected
from tests.web.journals import Story, new_run
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site", "patient")

QUERY = "q=o&label=prod&group=state&sort=-restarts"


def test_a_view_saves_the_filters_of_the_address_under_a_name(operator: Client) -> None:
    three_pipelines()

    chosen = operator.get(f"/?{QUERY}&page=1").content.decode()
    answer = operator.post("/views/save/", {"name": " On call ", "query": f"{QUERY}&page=1&x=1"})
    page = operator.get("/?all").content.decode()

    assert 'action="/views/save/"' in chosen
    assert f'name="query" value="{QUERY.replace("&", "&amp;")}"' in chosen
    assert (answer.status_code, answer["Location"]) == (302, f"/?{QUERY}")
    view = SavedView.objects.get()
    assert (view.user.username, view.name, view.query) == ("olaf", "On call", QUERY)
    assert f'href="/?{QUERY.replace("&", "&amp;")}"' in page
    shown = operator.get(f"/?{QUERY}").content.decode()
    assert 'aria-current="true">On call' in shown
    assert 'action="/views/save/"' not in shown, "it is saved already"
    assert "orders" in words_in(shown)


def test_the_page_opens_the_default_view_and_links_to_all_pipelines(operator: Client) -> None:
    three_pipelines()
    operator.post("/views/save/", {"name": "prod", "query": "label=prod", "is_default": "on"})
    operator.post("/views/save/", {"name": "o", "query": "q=o", "is_default": "on"})

    answer = operator.get("/")

    assert SavedView.objects.get(is_default=True).name == "o", "one at a time"
    assert (answer.status_code, answer["Location"]) == (302, "/?q=o")
    assert operator.get("/?all").status_code == 200
    assert 'href="/?all"' in operator.get("/?q=o").content.decode()


def test_a_view_is_renamed_made_the_default_and_deleted_by_its_person(operator: Client) -> None:
    save_view("olaf", "first", "q=a", is_default=False)
    save_view("olaf", "second", "q=b", is_default=True)
    first = SavedView.objects.get(name="first")

    operator.post(f"/views/{first.pk}/", {"name": "renamed", "is_default": "on"})
    taken = operator.post(f"/views/{first.pk}/", {"name": "second"}, follow=True)

    named = dict(SavedView.objects.values_list("name", "is_default"))
    assert named == {"renamed": True, "second": False}
    assert "You have another saved view named 'second'" in words_in(taken.content.decode())
    operator.post(f"/views/{first.pk}/", {"name": "renamed", "delete": "yes"})
    assert [view.name for view in SavedView.objects.all()] == ["second"]


def test_a_person_cannot_see_or_change_the_views_of_others(operator: Client, admin: Client) -> None:
    three_pipelines()
    save_view("ada", "mine", "q=a", is_default=True)
    key = SavedView.objects.get().pk

    page, listed = operator.get("/"), operator.get("/views/")
    operator.post(f"/views/{key}/", {"name": "stolen"})
    operator.post(f"/views/{key}/", {"name": "mine", "delete": "yes"})

    assert page.status_code == 200
    assert "mine" not in words_in(page.content.decode()) + words_in(listed.content.decode())
    assert SavedView.objects.get().name == "mine"
    assert "mine" in listed_names(admin)


def test_a_view_needs_a_name_and_the_number_of_views_is_limited(operator: Client) -> None:
    three_pipelines()
    nameless = operator.post("/views/save/", {"name": "  ", "query": "q=a"}, follow=True)
    for number in range(VIEWS_MAX):
        save_view("olaf", f"view {number}", "q=a", is_default=False)

    assert "Give the view a name of at most 60" in words_in(nameless.content.decode())
    with pytest.raises(Rejected, match="delete one first"):
        save_view("olaf", "one more", "q=a", is_default=False)
    save_view("olaf", "view 1", "q=b", is_default=False)  # this replaces one
    assert SavedView.objects.get(name="view 1").query == "q=b"


def test_deleting_a_person_deletes_their_views(operator: Client) -> None:
    save_view("olaf", "mine", "q=a", is_default=True)

    User.objects.get(username="olaf").delete()

    assert not SavedView.objects.exists()


def listed_names(client: Client) -> str:
    return client.get("/views/").content.decode()


def three_pipelines() -> None:
    for name in ("orders", "flights", "views"):
        Story(new_run(name)).started()
    Pipeline.objects.filter(name="orders").update(labels=["prod"])
    Projector().run_once()
