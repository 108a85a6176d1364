"""The drawing of a run's dataflow: the place of each operator, and the words an operator reads."""

import random
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.projection.projector import Projector
from ftdash.ui.pipelines.dataflow import layers
from tests.web.journals import Story, give_parallelism, new_run, run_started, shape
from tests.web.page_words import words_in

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
PAGE = "/pipelines/flights/"


@pytest.mark.parametrize("seed", range(50))
def test_every_edge_goes_to_the_right_by_one_column_at_a_time(seed: int) -> None:
    inputs = random_graph(random.Random(seed))

    placed = layers(inputs)

    column = {stop: index for index, stops in enumerate(placed.columns) for stop in stops}
    assert {(uid,) for uid in inputs} <= set(column)
    assert set(placed.routes) == {(s, uid) for uid, sources in inputs.items() for s in sources}
    for (source, target), route in placed.routes.items():
        assert (route[0], route[-1]) == ((source,), (target,))
        assert all(column[b] == column[a] + 1 for a, b in pairwise(route))


def test_the_branches_of_a_diamond_share_a_column() -> None:
    assert layers(DIAMOND).columns == [[("a",)], [("b",), ("c",)], [("d",)]]


def test_two_chains_do_not_cross_needlessly() -> None:
    crossed = {"a": [], "b": [], "y": ["b"], "x": ["a"], "end": ["y", "x"]}

    first, second, _ = layers(crossed).columns

    assert [{"y": "b", "x": "a"}[uid] for (uid,) in second] == [uid for (uid,) in first]


def test_vertices_that_read_from_the_same_source_are_placed_together() -> None:
    fan = {"s": [], "p": ["s"], "q": ["s"], "q1": ["q"], "p1": ["p"], "q2": ["q"], "p2": ["p"]}

    parents = [stop[0][0] for stop in layers(fan).columns[2]]

    assert parents in (["p", "p", "q", "q"], ["q", "q", "p", "p"])


def test_a_source_is_placed_just_before_the_vertex_that_it_feeds() -> None:
    joined_late = {"a": [], "late": [], "b": ["a"], "c": ["b", "late"]}

    assert set(layers(joined_late).columns[1]) == {("b",), ("late",)}


def test_an_edge_across_a_column_gets_a_place_of_its_own_in_it() -> None:
    placed = layers({"a": [], "b": ["a"], "c": ["a", "b"]})

    assert placed.columns[1] == [("b",), ("a", "c", "1")]
    assert placed.routes["a", "c"] == [("a",), ("a", "c", "1"), ("c",)]


def test_an_empty_graph_has_no_columns() -> None:
    assert layers({}).columns == []


@pytest.mark.usefixtures("site", "patient")
class TestPage:
    def test_each_operator_is_a_box_with_its_load_and_watermark(self, operator: Client) -> None:
        fold(Story(new_run()).started().sampled(records=0).wait(1_000).sampled(records=2_000))

        drawing, words = drawing_of(operator)

        assert drawing.count('class="flow-box') == 4
        assert drawing.count('class="flow-edge is-held-up"') == 3
        assert "flights source, 2 subtasks How busy each subtask is" in words
        assert "the busiest is flights[0], 50 % 50 % busy, 10 % backpressured 40 % idle" in words
        assert "4.00 k/s in busiest [0]: 50 %, least 50 % watermark 2013-01-01 00:26" in words
        assert "flights to join, hash; held up" in words

    def test_the_bottleneck_is_marked_in_words(self, operator: Client) -> None:
        fold(Story(new_run()).started().sampled())

        drawing, words = drawing_of(operator)

        assert "delays is the bottleneck: delays[0], busy 50 % of the time" in words
        assert drawing.count("is-bottleneck") == 1
        assert "▲ bottleneck, 2 subtasks" in words

    def test_an_operator_that_has_not_reported_says_so(self, operator: Client) -> None:
        fold(Story(new_run()).started())

        _, words = drawing_of(operator)

        assert words.count("has not reported") == 4

    def test_an_operator_with_a_parallelism_of_its_own_shows_it(self, operator: Client) -> None:
        run = new_run()
        fold(Story(run).started())
        give_parallelism(run.run_id, "delays", 3)

        drawing, words = drawing_of(operator)

        assert "delays sink, 3 subtasks has not reported" in words
        assert "delays; the pipeline sets the parallelism" in drawing
        assert "delays join 3 its own" in words

    def test_before_the_first_run_the_page_says_what_will_appear(self, operator: Client) -> None:
        new_run().delete()

        _, words = drawing_of(operator)

        assert "The operators appear here when a run of this pipeline starts." in words

    def test_loads_of_an_ended_run_are_marked_as_last_reported(self, operator: Client) -> None:
        fold(Story(new_run()).started().sampled().ended())

        _, words = drawing_of(operator)

        assert "they may have changed since" in words

    def test_names_of_operators_are_escaped(self, operator: Client) -> None:
        attack = "<script>alert(1)</script>"
        story = Story(new_run())
        started = run_started(4711)
        vertices = [shape(attack, []), shape("b", [attack])]
        story.tell(type(started)(**{**fields(started), "vertices": vertices}))
        fold(story)

        drawing, words = drawing_of(operator)

        assert "<script>alert" not in drawing
        assert attack in words

    def test_the_api_returns_the_loads_of_a_run(self, operator: Client) -> None:
        fold(Story(new_run()).started().sampled())

        found = operator.get("/api/runs/flights-1/loads")
        missing = operator.get("/api/runs/flights-2/loads")

        assert found.status_code == 200
        assert found.json()["subtasks"][0]["busy_ratio"] == 0.5
        assert missing.status_code == 404


def random_graph(rng: random.Random) -> dict[str, list[str]]:
    names = [f"v{number}" for number in range(rng.randint(1, 9))]
    return {
        name: rng.sample(names[:index], rng.randint(0, min(index, 3)))
        for index, name in enumerate(names)
    }


def fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def drawing_of(client: Client) -> tuple[str, str]:
    """Returns the region's HTML and the words that a person reads there."""
    page = client.get(reverse("pipeline-regions", args=["flights"])).content.decode()
    region = page[page.index('id="region-dataflow"') :]
    region = region[: region.index('id="region-', 10)]
    return region, words_in(region)


def fold(story: Story) -> None:
    Projector().run_once()
