"""The operator that holds a dataflow up, and the sentence that names it."""

from typing import Any

import pytest

from ftdash.metrics.queries.loads import SubtaskLoad
from ftdash.ui.metrics.operators import bottleneck, operator_rows, sentence
from tests.web.loads import GRAPH, load, loads


def test_the_bottleneck_is_the_busiest_operator_behind_backpressured_ones() -> None:
    told = sentence_of(
        load("source", busy_ratio=0.1, backpressured_ratio=0.8),
        load("other", busy_ratio=0.99),
        load("middle", busy_ratio=0.3, backpressured_ratio=0.6),
        load("sink", 0, busy_ratio=0.8),
        load("sink", 1, busy_ratio=0.97),
    )

    assert told == (
        "sink is the bottleneck: sink[1], busy 97 % of the time, and middle is backpressured 60 %"
        " on the way to it."
    )


def test_a_subtask_that_works_far_more_than_the_others_is_reported() -> None:
    told = sentence_of(
        load("middle", backpressured_ratio=0.6),
        load("sink", 0, busy_ratio=0.97),
        load("sink", 1, busy_ratio=0.2),
    )

    assert told.endswith(
        "Its work is unevenly spread: its subtasks are busy 58 % of the time on average."
    )


def test_no_operator_is_blamed_when_none_downstream_is_busy() -> None:
    reported = [load("middle", backpressured_ratio=0.6), load("sink", busy_ratio=0.2)]

    found = bottleneck(operator_rows(GRAPH, loads(*reported)), GRAPH)

    assert found is not None
    assert not found.is_busy
    assert sentence_of(*reported) == (
        "middle is backpressured 60 % of the time, and none of those that it sends to is busy: the"
        " busiest is sink[0], busy 20 % of the time. Look at the alignment of checkpoints and at"
        " what the sinks write to."
    )


def test_the_busiest_operator_is_named_when_none_is_backpressured() -> None:
    told = sentence_of(load("source", busy_ratio=0.2), load("sink", busy_ratio=0.3))

    assert told == "No operator holds others up; the busiest is sink[0], busy 30 % of the time."


def test_a_backpressured_operator_without_reporting_receivers_is_passed_over() -> None:
    held_up = load("sink", busy_ratio=0.4, backpressured_ratio=0.5)

    told = sentence_of(load("middle", backpressured_ratio=0.2), held_up)
    alone = sentence_of(held_up)

    assert told.startswith("middle is backpressured 20 % of the time")
    assert alone.startswith("No operator holds others up;")


@pytest.mark.parametrize(
    ("ratios", "blames"),
    [
        ({"backpressured": 0.0999}, False),
        ({"backpressured": 0.1}, True),
        ({"backpressured": 0.1, "busy": 0.4999}, False),
        ({"backpressured": 0.1, "busy": 0.5}, True),
    ],
)
def test_a_bottleneck_needs_minimum_backpressured_and_busy_ratios(
    ratios: dict[str, Any], blames: bool
) -> None:
    told = sentence_of(
        load("middle", backpressured_ratio=ratios["backpressured"]),
        load("sink", busy_ratio=ratios.get("busy", 0.9)),
    )

    assert ("is the bottleneck" in told) == blames


def test_before_the_first_report_no_bottleneck_is_named() -> None:
    assert sentence([], GRAPH) == "No subtask has reported yet."


def sentence_of(*reported: SubtaskLoad) -> str:
    return sentence(operator_rows(GRAPH, loads(*reported)), GRAPH)
