"""The lineage page: runs as a tree, with the points that they were restored from."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.points.queries import lineage
from ftdash.ui.lineage import page as lineage_page
from tests.web.journals import new_run
from tests.web.lineages import forked, over, points
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")


def test_a_run_is_shown_with_the_point_and_the_run_that_it_came_from(operator: Client) -> None:
    first = over(new_run())
    points(first, 1, 2, 3)
    second = over(forked(first, 2))
    points(second, 3)
    forked(second, 3)

    words = words_of(operator)

    assert (
        "Run 3 of flights, the newest, was restored from checkpoint 3 of run flights-2, 2 restores"
        " after the run that began at the beginning." in words
    )
    assert "run 1 flights-1 Finished the beginning" in words
    assert "checkpoint 2 by flights-2" in words
    assert "└─ run 2 flights-2 Finished checkpoint 2 of run 1" in words
    assert "└─ run 3 newest flights-3 Created checkpoint 3 of run 2" in words
    indents = re.findall("(\N{NO-BREAK SPACE}*)└─", page_of(operator))
    assert list(map(len, indents)) == [0, 3]


def test_runs_of_shipped_packages_name_their_code(operator: Client) -> None:
    code = {"package": "shop", "version": "1.1", "file": "shop.whl", "sha256": "0123456789abcdef"}
    new_run(code=code)

    assert "flights-1 shop 1.1 (sha256 0123456789ab)" in words_of(operator)
    page = operator.get(reverse("pipeline", args=["flights"])).content.decode()
    assert "code <b>shop 1.1 (sha256 0123456789ab)</b>" in page


def test_points_that_are_kept_come_newest_first_and_the_rest_is_counted(operator: Client) -> None:
    points(over(new_run()), *range(1, 10))

    words = words_of(operator)

    assert "checkpoint 9 , checkpoint 8 , checkpoint 7" in words
    assert "and 3 older" in words
    assert "Run 1 of flights, the newest, began at the beginning of its input." in words


def test_a_run_restored_from_another_pipeline_names_it(operator: Client) -> None:
    first = over(new_run())
    points(first, 1)
    forked(first, 1, name="copy")

    assert "copy, run 1 copy-1 Created checkpoint 1 of flights, run 1" in words_of(operator)


def test_only_the_newest_of_very_many_runs_are_shown(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_page, "RUNS_MAX", 2)
    first = over(new_run())
    second = over(forked(first, 1))
    over(forked(second, 1))

    words = words_of(operator)

    assert [run.run_id for run in lineage("flights", 2) or []] == ["flights-2", "flights-3"]
    assert "This shows the newest 2 runs, and always the newest run of flights." in words
    assert "run 2 flights-2 Finished checkpoint 1 of flights-1" in words


def test_the_newest_run_of_the_pipeline_is_shown_however_many_forks_follow(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_page, "RUNS_MAX", 2)
    first = over(new_run())
    over(forked(first, 1))
    for _ in range(3):
        over(forked(first, 1, name="copy"))

    words = words_of(operator)

    shown = [run.run_id for run in lineage("flights", 2) or []]
    assert shown == ["flights-2", "copy-2", "copy-3"]
    assert "Run 2 of flights, the newest, was restored from checkpoint 1 of run flights-1" in words
    assert "run 2 newest flights-2" in words


def test_a_run_restored_from_an_unknown_run_is_not_shown_as_a_fresh_start(
    operator: Client,
) -> None:
    moved = over(new_run(restored_from="/elsewhere/chk-7", first_checkpoint_id=8))

    assert (
        "Run 1 of flights, the newest, was restored from checkpoint 7 of an unknown run, in"
        " /elsewhere/chk-7." in words_of(operator)
    )

    forked(moved, 9)

    assert (
        "Run 2 of flights, the newest, was restored from checkpoint 9 of run flights-1, 1 restore"
        " after the run that was restored from /elsewhere/chk-7, which is not known here."
        in words_of(operator)
    )


def test_before_the_first_run_the_page_says_what_will_appear(operator: Client) -> None:
    new_run().delete()

    assert "The first run appears here when you start it." in words_of(operator)


def test_an_unknown_pipeline_has_no_lineage_page(operator: Client) -> None:
    assert operator.get(reverse("lineage", args=["nothing"])).status_code == 404


def test_the_pipeline_page_links_to_its_lineage(operator: Client) -> None:
    new_run()

    page = operator.get(reverse("pipeline", args=["flights"])).content.decode()

    assert f'href="{reverse("lineage", args=["flights"])}"' in page


def page_of(client: Client) -> str:
    return client.get(reverse("lineage", args=["flights"])).content.decode()


def words_of(client: Client) -> str:
    page = page_of(client)
    regions = client.get(reverse("lineage-regions", args=["flights"])).content.decode()
    assert 'id="region-lineage"' in page
    assert 'id="region-lineage" hx-swap-oob="true"' in regions
    return words_in(page)
