"""Trends of checkpoints: thinned out without losing a spike, and described in words."""

import math
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.test import Client

from ftdash.checkpoints.queries.completed_history import CompletedHistory, FailedPoint, Trend, trend
from ftdash.projection.projector import Projector
from ftdash.ui.checkpoints.trends import (
    PARTS_LISTED,
    TREND_POINTS_MAX,
    buffered,
    durations,
    extremes,
    sizes,
    trends,
)
from ftdash.ui.figures.style import POINTS_MAX
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed
from pipelines.domain.ids import CheckpointId
from tests.web.journals import Story, new_run
from tests.web.page_words import words_in

Point = tuple[int, datetime, float | None, None, int, int, int, None]
NOW = datetime(2026, 11, 21, 14, 2, 11, tzinfo=UTC)


@pytest.mark.parametrize("seed", range(30))
def test_thinning_out_loses_no_spike(seed: int) -> None:
    chance = random.Random(seed)
    values = [chance.choice([math.nan, chance.random()]) for _ in range(chance.randint(0, 500))]
    points_max = chance.randint(2, 60)

    kept = extremes(np.array(values), points_max).tolist()

    known = [index for index, value in enumerate(values) if not math.isnan(value)]
    assert kept == sorted(set(kept))
    assert set(kept) <= set(known)
    assert len(kept) <= points_max or kept == known
    if known:
        assert max(values[i] for i in kept) == max(values[i] for i in known)
        assert min(values[i] for i in kept) == min(values[i] for i in known)
    if len(known) <= points_max:
        assert kept == known


def test_spikes_in_each_part_of_a_long_history_are_drawn() -> None:
    spikes = {1_000: 900.0, 1_001: 4_000.0, 9_876: 1_500.0}
    points = [point(i, took_ms=spikes.get(i, 80.0 + i % 7)) for i in range(10_000)]

    figure = durations(of(points))

    assert figure is not None
    (line,) = figure["data"]
    assert len(line["x"]) <= TREND_POINTS_MAX <= POINTS_MAX
    drawn = dict(zip(line["customdata"], line["y"], strict=True))
    assert drawn[1_001] == 4_000.0
    assert drawn[9_876] == 1_500.0
    assert line["x"] == sorted(line["x"])


def test_the_sentence_names_the_worst_and_says_what_is_left_out() -> None:
    few = [point(i, took_ms=80.0) for i in (1, 2, 3)] + [point(4, took_ms=2_300.0)]
    many = [point(i, took_ms=80.0) for i in range(3_000)]

    (_, short), *_ = trends(of(few, [FailedPoint(5, NOW, 900.0)])).charts
    (_, long), *_ = trends(of(many)).charts

    assert short.sentence == (
        "Duration of 4 completed checkpoints: the greatest is 2.30 s (checkpoint 4), the median"
        " 80 ms. 1 failed one marked, after how long."
    )
    assert long.sentence.endswith(
        "Of every 10 the least and the greatest are drawn, so that no spike is lost."
    )


def test_the_table_shows_the_maximum_of_each_part_of_the_history() -> None:
    points = [point(i, took_ms=float(i)) for i in range(1, 101)]

    found = trends(of(points)).rows

    assert len(found) <= PARTS_LISTED
    assert (found[0].first_id, found[-1].last_id) == (1, 100)
    assert [row.first_id for row in found[1:]] == [row.last_id + 1 for row in found[:-1]]
    assert [row.cells[0] for row in found[:2]] == ["5.0 ms", "10 ms"]
    assert found[0].cells[1] == "–"


def test_unmeasured_values_are_not_drawn() -> None:
    points = [point(1, took_ms=None), point(2, took_ms=80.0), point(3, took_ms=None)]

    figure, held = durations(of(points)), buffered(of(points))

    assert figure is not None
    assert figure["data"][0]["customdata"] == [2]
    assert held is not None
    assert held["data"][1]["x"] == []
    assert sizes(of(points[:1])) is None
    assert [chart.figure for _, chart in trends(of([])).charts] == [None] * 4


@pytest.mark.usefixtures("site")
def test_the_trend_of_a_run_covers_completed_and_failed_checkpoints() -> None:
    story = Story(new_run()).started()
    for _ in range(4):
        story.completed()
    expire(story, after_ms=600)
    Projector().run_once()

    found = trend("flights-1")

    assert found.completed.checkpoint_ids.tolist() == [1, 2, 3, 4]
    assert found.completed.end_to_end_ms[0] == 80.0
    assert found.completed.alignment_ms[0] == 61.0
    assert found.completed.state_bytes[0] == 8000
    assert found.completed.uploaded_bytes[0] == 800
    assert found.completed.buffered_bytes[0] == 244_000
    assert found.completed.persisted_bytes[0] == 0
    assert [(each.checkpoint_id, each.failed_after_ms) for each in found.failed] == [(5, 600.0)]


def test_the_page_updates_the_trend_with_new_checkpoints(operator: Client) -> None:
    story = Story(new_run()).started().completed().completed()
    Projector().run_once()
    assert "Duration of 2 completed checkpoints" in words_of(operator)

    story.completed()
    expire(story, after_ms=900)
    Projector().run_once()

    words = words_of(operator)
    assert "Duration of 3 completed checkpoints" in words
    assert "1 failed one marked" in words


def of(points: list[Point], failed: list[FailedPoint] | None = None) -> Trend:
    return Trend(CompletedHistory.of(points), failed or [])


def point(number: int, *, took_ms: float | None) -> Point:
    at = NOW + timedelta(seconds=number)
    return number, at, took_ms, None, 1_000_000, 500_000, 2_000_000, None


def expire(story: Story, after_ms: int) -> None:
    number = story.next_checkpoint
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().wait(after_ms)
    story.tell(CheckpointFailed(checkpoint_id=number, reason=reason, message="Too late."))
    story.next_checkpoint = CheckpointId(number + 1)


def words_of(client: Client) -> str:
    answer = client.get("/pipelines/flights/checkpoints/")
    assert answer.status_code == 200
    return words_in(answer.content.decode())
