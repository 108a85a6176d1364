"""The planner page: advice and estimates from measurements or from a person's assumptions."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from ftdash.checkpoints.models import SubtaskPhase
from ftdash.jobs.models import Recovery, Run
from ftdash.projection.projector import Projector
from ftdash.retention import pruning
from ftdash.runs.queries.planning import planning_facts
from pipelines.domain.events import MetricsSampled
from pipelines.domain.status import CheckpointKind
from tests.web.journals import Story, StoryClock, new_run, sample
from tests.web.page_words import words_in

PAGE = "/pipelines/flights/planner/"
PERIODIC = {"execution.checkpointing.interval": "10 s"}

pytestmark = pytest.mark.usefixtures("site")


def test_the_planner_reads_its_measurements_from_the_rows() -> None:
    fold(measured_story())

    facts = planning_facts("flights")

    assert facts is not None
    assert (facts.interval_ms, facts.retained) == (10_000, 3)
    assert facts.costs is not None
    assert facts.costs.checkpoint_count == 3
    assert facts.costs.standstill_ms == 62  # join[1]: 61 ms of alignment, 1 ms of cut
    assert facts.costs.duration_p99_ms == 80
    assert (facts.costs.state_bytes, facts.costs.uploaded_bytes) == (8_000, 800)
    assert facts.costs.upload_bytes_per_s == 8 * 100 / 0.005
    assert facts.costs.written_bytes_per_s == pytest.approx(2 * 800 / 3600.49)
    assert facts.failures is not None
    assert facts.failures.failure_count == 1
    assert facts.failures.observed_ms == pytest.approx(3_600_000, rel=0.01)
    (recovery,) = facts.recoveries
    assert (recovery.restart_ms, recovery.restore_ms, recovery.catch_up_ms) == (220, 80, 700)
    assert recovery.state_bytes == 8_000
    assert facts.restore_bytes_per_s == 8_000 / 0.080
    assert (facts.arriving_per_s, facts.reading_per_s) == (1_000, 4_000)


def test_savepoints_do_not_count_as_measured_checkpoints() -> None:
    fold(Story(new_run(settings=PERIODIC)).started().completed(CheckpointKind.SAVEPOINT))

    facts = planning_facts("flights")

    assert facts is not None
    assert facts.costs is None


def test_an_unaligned_checkpoint_counts_no_alignment_as_standstill() -> None:
    fold(measured_story())
    SubtaskPhase.objects.update(is_unaligned=True)

    facts = planning_facts("flights")

    assert facts is not None
    assert facts.costs is not None
    assert facts.costs.standstill_ms == 1  # the cut alone


def test_the_failure_rate_covers_the_lifetimes_of_all_runs() -> None:
    fold(measured_story().ended())
    fold(Story(new_run(settings=PERIODIC), ago(3_600_000)).started().wait(3_600_000).sampled())

    facts = planning_facts("flights")

    assert facts is not None
    assert facts.failures is not None
    assert facts.failures.failure_count == 1
    assert facts.failures.observed_ms == pytest.approx(7_200_000, rel=0.01)


def test_deleted_failures_do_not_make_the_remaining_ones_look_rarer() -> None:
    run = new_run()
    Story(run).started().completed().slot_killed().slot_killed()
    Projector().run_once()
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(started_at=now - timedelta(days=200), last_event_at=now)
    old = Recovery.objects.order_by("sequence").first()
    assert old is not None
    Recovery.objects.filter(pk=old.pk).update(at=now - timedelta(days=150))

    for _ in range(2):  # before the checkpoint is deleted, and after
        facts = planning_facts("flights")
        assert facts is not None
        assert facts.failures is not None
        assert facts.failures.failure_count == 1
        assert timedelta(milliseconds=facts.failures.observed_ms).days in (89, 90)
        pruning.prune()
    assert Recovery.objects.count() == 1


def test_the_advice_names_the_measurements_it_rests_on(operator: Client) -> None:
    fold(measured_story())

    page = words_of(operator)

    assert "An interval of about 22.0 s: there the two losses together are least." in page
    assert "A checkpoint held its slowest subtask up for 62 ms" in page
    assert "1 failure in 1 h 00 min, one in 1 h 00 min on the mean." in page
    assert "set now 10.0 s" in page
    assert "advised 22.0 s" in page


def test_a_run_that_never_failed_bounds_the_failure_rate(operator: Client) -> None:
    story = Story(new_run(settings=PERIODIC), ago(3_600_000)).started()
    fold(story.completed().wait(3_600_000).sampled())

    page = words_of(operator)

    assert "it never failed in 1 h 00 min, so it fails less often than once in 20 min 00 s" in page


def test_each_estimate_is_shown_beside_its_measurement_with_units(operator: Client) -> None:
    fold(measured_story())

    page = words_of(operator)

    for shown in (
        "Textbook: checkpoint volume state size × checkpoint frequency (B × 1/s) 800 B/s",
        "Written uploaded bytes a checkpoint ÷ interval (B/s) 80 B/s 6.91 MB a day",
        "Kept state size + (retained − 1) × uploaded bytes (B) 9.60 kB 3 checkpoints retained",
        "Textbook: recovery time state size ÷ (read speed × bandwidth) 5e-07 s²/B",
        "Until all subtasks run",
        "300 ms 220 ms to restart, as measured, and 80 ms to read the state",
        "Measured: until all subtasks run the newest recovery, by its phases (s) 300 ms",
        "Measured: until caught up the newest recovery (s) 1.00 s",
    ):
        assert shown in page


def test_entered_assumptions_replace_the_measurements(operator: Client) -> None:
    fold(measured_story())

    page = words_of(operator, "?state_mb=1000&read_mb_s=100&bandwidth_mb_s=50&interval_s=20")

    assert "× checkpoint frequency (B × 1/s) 50.0 MB/s" in page
    assert "20.2 s 220 ms to restart, as measured, and 20.0 s to read the state" in page
    assert "This page is computed from what you entered" in page
    assert "set now 20.0 s" in page


@pytest.mark.parametrize("nonsense", ["x", "-3", "nan", "inf", "1e400", "0", "%00"])
def test_an_impossible_number_is_reported_and_not_used(operator: Client, nonsense: str) -> None:
    fold(measured_story())

    page = words_of(operator, f"?interval_s={nonsense}")

    assert "× checkpoint frequency (B × 1/s) 800 B/s" in page
    assert re.search(r"Enter a number|greater than or equal to|Null characters", page)


@pytest.mark.parametrize("query", ["?cost_ms=0", "?cost_ms=1e12", "?between_failures_h=1e-6"])
def test_extreme_assumptions_still_get_an_answer(operator: Client, query: str) -> None:
    fold(measured_story())

    assert "How often to checkpoint" in words_of(operator, query)


def test_what_was_never_measured_is_a_dash_and_the_page_says_what_is_missing(
    operator: Client,
) -> None:
    fold(Story(new_run()).started())

    page = words_of(operator)

    assert "No periodic checkpoint has completed yet" in page
    for formula in (
        "checkpoint frequency (B × 1/s)",
        "÷ interval (B/s)",
        "× uploaded bytes (B)",
        "÷ the time they span (B/s)",
        "÷ (read speed × bandwidth)",
        "at the speed to spare (s)",
        "by its phases (s)",
        "the newest recovery (s)",
    ):
        assert f"{formula} –" in page
    missing = "the state size, the read speed, the bandwidth, a measured recovery"
    assert f"read speed and bandwidth (s) – missing: {missing}" in page


def test_sources_that_read_at_full_speed_have_no_capacity_to_spare(operator: Client) -> None:
    story = measured_story()
    fold(story.tell(*[sample_at(4_000.0) for _ in range(40)]))

    assert "nothing is to spare, as far as seen" in words_of(operator)


def test_a_pipeline_that_never_ran_has_a_page(operator: Client) -> None:
    new_run().delete()

    assert "Nothing was measured yet: it has no run." in words_of(operator)


def test_a_refresh_updates_every_region_of_the_page(operator: Client) -> None:
    fold(measured_story())

    whole, regions = text_of(operator), text_of(operator, address=PAGE + "regions/")

    assert region_ids(whole) == region_ids(regions)
    assert "<form" not in regions  # a refresh replaces nothing that a user is typing in


def measured_story() -> Story:
    """Makes an hour with three checkpoints, a failure after the first, and a burst at the end."""
    story = Story(new_run(settings=PERIODIC), ago(3_601_000)).started().completed().slot_killed()
    story.wait(1_800_000).completed().wait(1_800_000).completed()
    return story.sampled(1_000.0).sampled(4_000.0).sampled(1_000.0)


def sample_at(records_per_s: float) -> MetricsSampled:
    return sample(records_per_s, 10)


def ago(milliseconds: int) -> StoryClock:
    clock = StoryClock()
    clock.now_ms -= milliseconds
    return clock


def fold(story: Story) -> None:
    projector = Projector()
    while projector.run_once():
        pass


def region_ids(text: str) -> set[str]:
    return set(re.findall(r'id="(region-[a-z-]+|pulse)"', text))


def text_of(client: Client, query: str = "", address: str = PAGE) -> str:
    answer: Any = client.get(address + query)
    assert answer.status_code == 200
    text: str = answer.content.decode()
    return text


def words_of(client: Client, query: str = "") -> str:
    return words_in(text_of(client, query))
