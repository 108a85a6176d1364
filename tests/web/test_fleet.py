"""The page of all pipelines: clocks, trends, the cost of a failure, the most pressing first."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.points.queries import point_choice
from ftdash.projection.projector import Projector
from ftdash.runs.fleet_answers import Concern, PipelineSummary
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.templatetags.formats import most, sparkline
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed, JobStatusChanged
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, StoryClock, new_run
from tests.web.page_words import text_of, words_of

pytestmark = pytest.mark.usefixtures("site", "patient")


def test_a_pipeline_shows_clocks_trend_backpressure_and_the_cost_of_a_failure(
    operator: Client,
) -> None:
    story = Story(new_run(), StoryClock(StoryClock().now_ms - 30_000)).started()
    story.completed().slot_killed().completed().wait(29_000).sampled(2_000.0)
    fold(story)

    page, words = text_of(operator, "/"), words_of(operator, "/")

    assert page.count('class="sparkline"') == 1
    assert "80 ms peak 80 ms in 2" in words
    assert "10 % flights" in words
    assert re.search(r"about [\d.]+ m?s [\d,]+ records to replay", words)
    assert "run 1 of flight_delays, parallelism 2" in words


@pytest.mark.parametrize("silent_s", [0, 3, 60])
def test_every_page_shows_the_same_cost_of_a_failure(silent_s: int) -> None:
    """The cost stops growing once the driver is silent."""
    clock = StoryClock(StoryClock().now_ms - 10_000 - 1_000 * silent_s)
    fold(Story(new_run(), clock).started().completed().wait(2_000).sampled(since=6_255))

    pulse, page, choice = summary().pulse, queries.pipeline_page("flights"), point_choice("flights")

    assert pulse is not None
    assert page is not None
    assert page.run is not None
    assert choice is not None
    newest = choice.points[0]
    costs = [each.records_to_replay for each in (pulse, page.run, newest)]
    assert costs == [6_255] * 3


def test_the_recovery_time_is_not_guessed_before_one_was_measured(operator: Client) -> None:
    fold(Story(new_run()).started().completed().sampled())

    assert re.search(r"[\d,]+ records? time not measured yet", words_of(operator, "/"))


def test_the_pulse_of_a_run_comes_from_its_newest_checkpoints() -> None:
    story = Story(new_run()).started().completed().completed()
    fold(failed(failed(story, 3), 4))

    pulse = summary().pulse

    assert pulse is not None
    assert pulse.durations_ms == [80.0, 80.0]
    assert (pulse.failed_in_row, pulse.failed_why) == (
        2,
        "Checkpoint expired before completing.",
    )
    assert summary().attention == (
        "The last 2 checkpoints failed: Checkpoint expired before completing."
    )


@pytest.mark.parametrize(
    "reason",
    [
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    ],
)
def test_a_checkpoint_that_ended_with_its_attempt_is_no_concern(
    reason: CheckpointFailureReason,
) -> None:
    fold(failed(Story(new_run()).started().completed(), 2, reason))

    assert summary().concern is Concern.NONE


def test_failures_before_a_completed_checkpoint_do_not_count() -> None:
    story = failed(Story(new_run()).started(), 1)
    story.next_checkpoint = CheckpointId(2)
    fold(story.completed())

    assert summary().concern is Concern.NONE


def test_a_run_that_recovers_again_and_again_needs_attention() -> None:
    story = Story(new_run()).started().completed()
    for _ in range(3):
        story.slot_killed()
    fold(story)

    assert summary().attention == "It recovered 3 times within the last 10 minutes."


def test_the_facts_of_a_run_are_read_once_until_it_has_news(
    django_assert_num_queries: Any,
) -> None:
    stories = [Story(new_run(name)).started().completed() for name in "abc"]
    fold(stories[0])
    queries.fleet()

    with django_assert_num_queries(3):
        queries.fleet()
    fold(failed(stories[0], 2))

    assert [each.concern for each in queries.fleet().pipelines] == [
        Concern.CHECKPOINTS_FAIL,
        Concern.NONE,
        Concern.NONE,
    ]


def test_a_new_checkpoint_and_a_recovery_are_seen_at_once_despite_the_cache() -> None:
    story = Story(new_run()).started().completed().sampled()
    fold(story)
    before = summary().pulse
    fold(story.completed().slot_killed().sampled())
    after = summary().pulse

    assert before is not None
    assert after is not None
    assert (before.durations_ms, after.durations_ms) == ([80.0], [80.0, 80.0])
    assert (before.to_recover_ms, before.recovery_count) == (None, 0)
    assert after.to_recover_ms is not None
    assert after.recovery_count == 1


def test_an_ended_run_has_nothing_to_replay(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().completed().ended())

    pulse = summary().pulse

    assert pulse is not None
    assert (pulse.records_to_replay, pulse.to_recover_ms) == (None, None)
    assert (pulse.backpressured_operator, pulse.backpressured_ratio) == (None, None)
    assert pulse.durations_ms == [80.0]


@pytest.mark.parametrize(("interval", "is_late"), [("1 s", True), ("1 min", False)])
def test_a_long_checkpoint_interval_delays_lateness(interval: str, is_late: bool) -> None:
    run = new_run(settings={"execution.checkpointing.interval": interval})
    story = Story(run, StoryClock(StoryClock().now_ms - 90_000)).started().completed()
    fold(story.wait(89_000).sampled())

    assert (summary().concern is Concern.NO_CHECKPOINT) is is_late


def test_a_run_that_never_completed_a_checkpoint_is_late_too() -> None:
    story = Story(new_run(), StoryClock(StoryClock().now_ms - 90_000)).started()
    fold(story.wait(89_000).sampled())

    assert "No checkpoint has completed since it started" in summary().attention


def test_a_run_stuck_in_starting_or_cancelling_needs_attention(settings: Any) -> None:
    settings.SILENT_AFTER_S = 600.0
    new_run("never-spoke", created_at=timezone.now() - timedelta(seconds=70))
    story = Story(new_run("comes-up"), StoryClock(StoryClock().now_ms - 90_000))
    fold(story.tell(JobStatusChanged(status=JobStatus.INITIALIZING)).wait(10_000))
    story.started().tell(JobStatusChanged(status=JobStatus.CANCELLING))
    fold(story)

    found = {each.name: each.attention for each in queries.fleet().pipelines}

    assert re.match(r"It has been CREATED for 1 min 1\d s: Its driver", found["never-spoke"])
    assert re.match(r"It has been CANCELLING for 1 min 2\d s\.", found["comes-up"])


def test_uncommitted_output_is_a_concern_of_its_own() -> None:
    run = new_run()
    fold(Story(run).started().completed())
    type(run).objects.update(last_committed_at=timezone.now() - timedelta(seconds=100))

    assert summary().concern is Concern.NO_OUTPUT


def test_the_most_pressing_pipeline_comes_first_with_its_reason(operator: Client) -> None:
    fold(Story(new_run("a")).started().completed())
    fold(failed(Story(new_run("b")).started().completed(), 2))
    fold(Story(new_run("c")).started().ended(JobStatus.FAILED, "It was given up."))

    page = text_of(operator, "/")

    order = [page.index(f'id="open-{name}"') for name in "cba"]
    assert order == sorted(order)
    notices = page[page.index('id="region-attention"') : page.index('id="region-fleet"')]
    assert re.findall(r"notice (is-\w+)", notices) == ["is-bad", "is-warn"]
    assert re.findall(r'data-incident="([^"]*)"', notices) == ["unknown", "checkpoints-fail"]


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([5.0], "0.0,1.0 100,1.0"),
        ([0.0, 10.0, 5.0], "0.0,23.0 50.0,1.0 100.0,12.0"),
        ([0.0, 0.0], "0.0,23.0 100.0,23.0"),
    ],
)
def test_a_sparkline_begins_at_zero_and_ends_with_the_newest(
    values: list[float], points: str
) -> None:
    assert sparkline(values) == {"points": points}


def test_the_maximum_of_no_values_is_unknown() -> None:
    assert (most([]), most([1.0, 3.0])) == (None, 3.0)


def failed(
    story: Story,
    number: int,
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_EXPIRED,
) -> Story:
    story.next_checkpoint = CheckpointId(number)
    return story.triggered().tell(
        CheckpointFailed(checkpoint_id=CheckpointId(number), reason=reason, message="Late.")
    )


def summary() -> PipelineSummary:
    (found,) = queries.fleet().pipelines
    return found


def fold(_: Story) -> None:
    Projector().run_once()
    Heartbeat.objects.update_or_create(
        name=HeartbeatName.RECONCILE, defaults={"at": timezone.now(), "pid": 1}
    )
