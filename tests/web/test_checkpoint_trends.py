"""Trends of checkpoints: thinned out without losing a spike, and said in words."""

import html
import random
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from ftdash.checkpoints import trends as trend_queries
from ftdash.checkpoints.trends import FailedPoint, Trend, TrendPoint, trend
from ftdash.jobs.projector import Projector
from ftdash.ui.figures.checkpoint_trends import TREND_POINTS_MAX, buffered, durations, sizes
from ftdash.ui.figures.decimation import extremes
from ftdash.ui.figures.style import POINTS_MAX
from ftdash.ui.trend_parts import PARTS_LISTED, trends
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed
from pipelines.domain.ids import CheckpointId
from tests.web.journals import Story, new_run

NOW = datetime(2026, 11, 21, 14, 2, 11, tzinfo=UTC)


@pytest.mark.parametrize("seed", range(30))
def test_no_spike_is_lost_however_much_is_left_out(seed: int) -> None:
    chance = random.Random(seed)
    values = [chance.choice([None, chance.random()]) for _ in range(chance.randint(0, 500))]
    points_max = chance.randint(2, 60)

    kept = extremes(values, points_max)

    known = [index for index, value in enumerate(values) if value is not None]
    assert kept == sorted(set(kept))
    assert set(kept) <= set(known)
    assert len(kept) <= points_max or kept == known
    if known:
        assert max(values[i] or 0 for i in kept) == max(values[i] or 0 for i in known)
        assert min(values[i] or 0 for i in kept) == min(values[i] or 0 for i in known)
    if len(known) <= points_max:
        assert kept == known


def test_spikes_in_each_part_of_a_long_history_are_drawn() -> None:
    spikes = {1_000: 900.0, 1_001: 4_000.0, 9_876: 1_500.0}
    points = [point(i, took_ms=spikes.get(i, 80.0 + i % 7)) for i in range(10_000)]

    figure = durations(Trend(points, []))

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

    (_, short), *_ = trends(Trend(few, [FailedPoint(5, NOW, 900.0)])).charts
    (_, long), *_ = trends(Trend(many, [])).charts

    assert short.sentence == (
        "Duration of 4 completed checkpoints: the greatest is 2.30 s (checkpoint 4), the median"
        " 80 ms. 1 failed one marked, after how long."
    )
    assert long.sentence.endswith(
        "Of every 10 the least and the greatest are drawn, so that no spike is lost."
    )


def test_the_table_has_the_greatest_of_each_part_of_the_history() -> None:
    points = [point(i, took_ms=float(i)) for i in range(1, 101)]

    found = trends(Trend(points, [])).rows

    assert len(found) <= PARTS_LISTED
    assert (found[0].first_id, found[-1].last_id) == (1, 100)
    assert [row.first_id for row in found[1:]] == [row.last_id + 1 for row in found[:-1]]
    assert [row.cells[0] for row in found[:2]] == ["5.0 ms", "10 ms"]
    assert found[0].cells[1] == "–"


def test_what_was_not_measured_is_not_drawn() -> None:
    points = [point(1, took_ms=None), point(2, took_ms=80.0), point(3, took_ms=None)]

    figure, held = durations(Trend(points, [])), buffered(Trend(points, []))

    assert figure is not None
    assert figure["data"][0]["customdata"] == [2]
    assert held is not None
    assert held["data"][1]["x"] == []
    assert sizes(Trend(points[:1], [])) is None
    assert [chart.figure for _, chart in trends(Trend([], [])).charts] == [None] * 4


@pytest.mark.usefixtures("site")
def test_the_trend_of_a_run_is_of_its_newest_checkpoints_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(new_run()).started()
    for _ in range(4):
        story.completed()
    expire(story, after_ms=600)
    Projector().run_once()
    monkeypatch.setattr(trend_queries, "TREND_MAX", 3)

    found = trend("flights-1")

    assert [each.checkpoint_id for each in found.completed] == [2, 3, 4]
    assert found.completed[0][2:] == (80.0, 61.0, 8000, 800, 244_000, 0)
    assert [(each.checkpoint_id, each.failed_after_ms) for each in found.failed] == [(5, 600.0)]


def test_trends_are_drawn_once_a_checkpoint_for_all_who_look(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def counted(run_id: str) -> Trend:
        reads.append(run_id)
        return trend(run_id)

    monkeypatch.setattr("ftdash.ui.checkpoints_page.trend", counted)
    story = Story(new_run()).started().completed().completed()
    Projector().run_once()

    for _ in range(3):
        assert "Duration of 2 completed checkpoints" in words_of(operator)
    assert len(reads) == 1

    story.completed()
    Projector().run_once()
    assert "Duration of 3 completed checkpoints" in words_of(operator)
    expire(story, after_ms=900)
    Projector().run_once()
    assert "1 failed one marked" in words_of(operator)
    assert len(reads) == 3


def point(number: int, *, took_ms: float | None) -> TrendPoint:
    at = NOW + timedelta(seconds=number)
    return TrendPoint(number, at, took_ms, None, 1_000_000, 500_000, 2_000_000, None)


def expire(story: Story, after_ms: int) -> None:
    number = story.next_checkpoint
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().wait(after_ms)
    story.tell(CheckpointFailed(checkpoint_id=number, reason=reason, message="Too late."))
    story.next_checkpoint = CheckpointId(number + 1)


def words_of(client: Client) -> str:
    answer = client.get("/pipelines/flights/checkpoints/")
    assert answer.status_code == 200
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())
