"""Evaluation of alerts: the values that rules read; each alert fires once and clears once."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ftdash.alerts import queries, services
from ftdash.alerts.evaluation import evaluate, readings
from ftdash.alerts.hysteresis import Absent, Band, Reading
from ftdash.alerts.models import Alert, AlertRule, Evaluation, RuleStanding, Watched
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.jobs.models import Run
from ftdash.metrics.models import Sample
from ftdash.projection.projector import Projector
from ftdash.runs.queries.pulses import WITH_THE_ATTEMPT
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointCommitted, CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind, JobStatus
from tests.web.default_rules import make_default_rules
from tests.web.journals import Story, checkpoint_completed, new_run

pytestmark = pytest.mark.usefixtures("site")

BAND = Band(fire_above=60.0, fire_after_s=10.0, clear_below=30.0, clear_after_s=20.0)
INTERVAL = "execution.checkpointing.interval"
AT_ONCE = Band(fire_above=0.0, fire_after_s=0.0, clear_below=0.0, clear_after_s=0.0)


@pytest.fixture(autouse=True)
def _no_other_rule(site: None) -> None:
    AlertRule.objects.all().delete()


@pytest.fixture
def began() -> datetime:
    """Returns a start so long ago that all of a test lies in the past."""
    return timezone.now() - timedelta(hours=1)


def test_an_alert_fires_once_and_clears_once(began: datetime) -> None:
    run = running()
    made(Watched.SINCE_CHECKPOINT)
    completed(run, began - timedelta(seconds=100))

    for seconds in range(0, 60, 5):
        evaluate(began + timedelta(seconds=seconds))

    alert = Alert.objects.get()
    assert alert.fired_at == began + timedelta(seconds=10)
    assert alert.fired_value == pytest.approx(110.0)
    for seconds in range(60, 120, 5):
        completed(run, began + timedelta(seconds=seconds - 1))
        evaluate(began + timedelta(seconds=seconds))
    alert.refresh_from_db()
    assert alert.cleared_at == began + timedelta(seconds=80)
    assert alert.cleared_because == "The value has stayed below the lower threshold."
    assert Alert.objects.count() == 1


def test_a_value_that_rises_again_before_clearing_stays_one_alert(began: datetime) -> None:
    run = running()
    made(Watched.SINCE_CHECKPOINT)
    for seconds in range(0, 400, 5):
        since = 100 if seconds % 40 < 25 else 10
        completed(run, began + timedelta(seconds=seconds - since))
        evaluate(began + timedelta(seconds=seconds))

    assert Alert.objects.count() == 1
    assert [alert.cleared_at for alert in queries.firing()] == [None]


def test_late_readings_are_not_judged(began: datetime) -> None:
    run = running()
    made(Watched.SINCE_CHECKPOINT)
    completed(run, began - timedelta(seconds=100))
    evaluate(began)
    evaluate(began + timedelta(seconds=10))
    before = list(RuleStanding.objects.values())

    completed(run, began)
    evaluate(began + timedelta(seconds=5))

    assert list(RuleStanding.objects.values()) == before
    assert Evaluation.objects.get().at == began + timedelta(seconds=10)


def test_after_the_clock_was_set_back_rules_are_judged_again(began: datetime) -> None:
    run = running()
    made(Watched.SINCE_CHECKPOINT)
    evaluate(timezone.now() + timedelta(hours=1))

    completed(run, began - timedelta(seconds=100))
    for seconds in range(0, 15, 5):
        evaluate(began + timedelta(seconds=seconds))

    assert Alert.objects.get().fired_at == began + timedelta(seconds=10)


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.FINISHED])
def test_the_alerts_of_a_run_clear_at_once_when_it_ends(began: datetime, status: JobStatus) -> None:
    fired(began)
    Run.objects.update(status=status.value, ended_at=began)

    evaluate(began + timedelta(seconds=15))

    assert Alert.objects.get().cleared_because == "The run is over."


def test_a_failed_run_stays_late(began: datetime) -> None:
    fired(began)
    Run.objects.update(status=JobStatus.FAILED.value, ended_at=began)

    evaluate(began + timedelta(seconds=15))

    assert Alert.objects.get().cleared_at is None


def test_a_rule_of_one_pipeline_ignores_the_others(began: datetime) -> None:
    running("flights"), running("views")
    made(Watched.SINCE_CHECKPOINT, AT_ONCE, pipeline="views")

    evaluate(began + timedelta(hours=2))

    assert [alert.pipeline for alert in queries.firing()] == ["views"]
    assert queries.firing("flights") == []


def test_a_rule_that_is_off_or_deleted_clears_its_alerts(began: datetime) -> None:
    fired(began)

    services.switch_rule(name="late", is_on=False, requester="ada", reason="planned")
    assert Alert.objects.get().cleared_because == "The rule was switched off by ada."
    evaluate(began + timedelta(seconds=15))
    evaluate(began + timedelta(seconds=30))
    assert Alert.objects.count() == 1

    services.switch_rule(name="late", is_on=True, requester="ada", reason="done")
    evaluate(began + timedelta(seconds=35))
    evaluate(began + timedelta(seconds=50))
    assert len(queries.firing()) == 1
    services.delete_rule(name="late", requester="ada", reason="noise")
    assert queries.firing() == []
    assert [each.rule for each in queries.history(1, 10).rows] == ["late", "late"]


CHANGES: dict[str, Callable[..., None]] = {
    "switched off": partial(services.switch_rule, is_on=False),
    "changed": partial(services.change_rule, band=AT_ONCE),
    "deleted": services.delete_rule,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_the_evaluation_lock_before_it_reads_the_rule(change: str) -> None:
    made(Watched.SINCE_CHECKPOINT)

    with CaptureQueriesContext(connection) as found:
        CHANGES[change](name="late", requester="ada", reason="noise")

    read = [re.search('FROM "alerts_([a-z]+)"', query["sql"]) for query in found]
    tables = [table[1] for table in read if table]
    assert tables.index("evaluation") < tables.index("alertrule")


def test_an_evaluation_needs_no_more_queries_for_more_pipelines(began: datetime) -> None:
    counts = []
    for name in ("a", "b", "c"):
        running(name)
        made(Watched.SINCE_CHECKPOINT, name=f"late {name}")
        evaluate(timezone.now())  # writes all changes now
        with CaptureQueriesContext(
            connection,
        ) as found:
            evaluate(timezone.now())
        counts.append(len(found))

    assert counts[0] == counts[1] == counts[2]


def test_a_pipeline_that_never_ran_fires_no_alert(began: datetime) -> None:
    run = new_run()
    Run.objects.filter(pk=run.pk).delete()
    made(Watched.SINCE_CHECKPOINT, AT_ONCE)

    evaluate(began)

    assert set(read().values()) == {Absent.OVER}
    assert not Alert.objects.exists()


def test_lateness_of_a_run_without_a_checkpoint_counts_from_its_start() -> None:
    run = running(checkpoint=False)
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(started_at=now - timedelta(seconds=42))

    found = read(now)

    assert found[Watched.SINCE_CHECKPOINT] == pytest.approx(42.0)
    assert found[Watched.SINCE_OUTPUT] == pytest.approx(42.0)


def test_failed_checkpoints_are_counted_in_a_row_and_within_ten_minutes() -> None:
    run = new_run()
    story = Story(run).started()
    fail(story).completed()
    story.wait(5)
    fail(fail(story))
    Projector().run_once()

    now = read()
    later = read(timezone.now() + timedelta(minutes=11))

    assert (now[Watched.FAILED_IN_ROW], now[Watched.FAILED_LATELY]) == (2.0, 3.0)
    assert (later[Watched.FAILED_IN_ROW], later[Watched.FAILED_LATELY]) == (2.0, 0.0)


@pytest.mark.parametrize("reason", sorted(WITH_THE_ATTEMPT))
def test_a_checkpoint_that_ended_with_its_attempt_does_not_count_as_failed(reason: str) -> None:
    fail(Story(new_run()).started().completed(), CheckpointFailureReason[reason])
    Projector().run_once()

    assert (read()[Watched.FAILED_IN_ROW], read()[Watched.FAILED_LATELY]) == (0.0, 0.0)


def test_a_run_without_periodic_checkpoints_is_not_late() -> None:
    Run.objects.filter(pk=running().pk).update(settings={INTERVAL: "off"})

    found = read(timezone.now() + timedelta(days=1))

    assert found[Watched.SINCE_CHECKPOINT] is Absent.UNASKED
    assert found[Watched.SINCE_OUTPUT] is Absent.UNASKED
    assert found[Watched.FAILED_IN_ROW] == 0.0


def test_switching_off_periodic_checkpoints_clears_lateness_alerts(began: datetime) -> None:
    fired(began)
    Run.objects.update(changed_settings={INTERVAL: "off"})

    evaluate(began + timedelta(seconds=15))

    alert = Alert.objects.get()
    assert alert.cleared_because == "The run no longer takes periodic checkpoints."


def test_time_since_checkpoint_and_since_output_are_read_separately() -> None:
    running()
    now = timezone.now()
    Run.objects.update(
        last_completed_at=now - timedelta(seconds=20), last_committed_at=now - timedelta(seconds=50)
    )

    found = read(now)

    assert (found[Watched.SINCE_CHECKPOINT], found[Watched.SINCE_OUTPUT]) == (20.0, 50.0)


@pytest.mark.parametrize("watched", [Watched.SINCE_CHECKPOINT, Watched.SINCE_OUTPUT])
def test_a_long_interval_fires_after_three_intervals_and_clears_below_two(
    began: datetime, watched: Watched
) -> None:
    Run.objects.filter(pk=running().pk).update(settings={INTERVAL: "10 min"})
    made(watched)

    def judged(since: timedelta, at_s: int) -> list[datetime | None]:
        now = began + timedelta(seconds=at_s)
        Run.objects.update(last_completed_at=now - since, last_committed_at=now - since)
        evaluate(now)
        return [alert.cleared_at for alert in Alert.objects.all()]

    assert judged(timedelta(minutes=29), 0) == []
    assert judged(timedelta(minutes=29, seconds=20), 20) == []
    judged(timedelta(minutes=31), 40)
    assert judged(timedelta(minutes=31, seconds=10), 50) == [None]
    assert Alert.objects.get().fire_above == 1800.0
    judged(timedelta(minutes=21), 60)
    assert judged(timedelta(minutes=22), 100) == [None]
    judged(timedelta(minutes=10), 120)
    assert judged(timedelta(minutes=11), 140) == [began + timedelta(seconds=140)]


def test_a_short_interval_and_rules_on_other_values_keep_the_threshold(
    began: datetime,
) -> None:
    Run.objects.filter(pk=running().pk).update(settings={INTERVAL: "1 h"}, watermark_ms=0)
    Run.objects.filter(pk=running("views").pk).update(
        settings={INTERVAL: "15 s"}, last_completed_at=began - timedelta(seconds=70)
    )
    made(Watched.EVENT_TIME_LAG, pipeline="flights", name="lag")
    made(Watched.SINCE_CHECKPOINT, pipeline="views")

    evaluate(began)
    evaluate(began + timedelta(seconds=10))

    found = {(alert.pipeline.name, alert.rule_name): alert.fire_above for alert in all_alerts()}
    assert found == {("flights", "lag"): 60.0, ("views", "late"): 60.0}


def test_a_failed_run_alerts_in_the_next_round_until_it_runs_again(began: datetime) -> None:
    make_default_rules()
    run = running()
    Run.objects.filter(pk=run.pk).update(status=JobStatus.FAILED.value)

    evaluate(began)

    assert [alert.rule for alert in queries.firing()] == ["a run has failed"]
    Run.objects.filter(pk=run.pk).update(status=JobStatus.RUNNING.value)
    evaluate(began + timedelta(seconds=5))
    assert queries.firing() == []


def test_a_damaged_point_of_an_earlier_run_alerts_in_the_next_round(
    began: datetime,
) -> None:
    make_default_rules()
    story = Story(new_run()).started()
    story.completed(path="/points/1").completed(path="/points/2").completed(path="/points/3")
    story.ended()
    Projector().run_once()
    Checkpoint.objects.filter(checkpoint_id__lte=2).update(problem="a.parquet is missing")
    Checkpoint.objects.filter(checkpoint_id=2).update(status=CheckpointStatus.DISCARDED)
    Story(new_run()).started()
    Projector().run_once()

    evaluate(began)

    [alert] = queries.firing()
    assert (alert.rule, read()[Watched.DAMAGED_POINTS]) == ("a recovery point is damaged", 1.0)


def test_restarts_are_counted_within_ten_minutes() -> None:
    run = new_run()
    Story(run).started().completed().slot_killed().slot_killed()
    Projector().run_once()

    assert read()[Watched.RESTARTS_LATELY] == 2.0
    assert read(timezone.now() + timedelta(minutes=11))[Watched.RESTARTS_LATELY] == 0.0


def test_output_waits_from_its_checkpoints_trigger_until_that_or_a_newer_commit() -> None:
    story = Story(new_run()).started().completed()
    complete(complete(story)).wait(5)
    Projector().run_once()
    triggered_at = Checkpoint.objects.get(checkpoint_id=2).trigger_at

    assert waits_s(triggered_at + timedelta(seconds=90)) == 90.0
    Run.objects.update(status=JobStatus.FAILED.value)
    assert waits_s(triggered_at + timedelta(seconds=99)) == 99.0
    story.tell(CheckpointCommitted(checkpoint_id=CheckpointId(3)))
    Projector().run_once()
    assert waits_s(triggered_at + timedelta(seconds=90)) == 0.0


def test_output_of_the_restored_and_of_unfinished_checkpoints_does_not_wait() -> None:
    story = Story(new_run()).started()
    complete(story).slot_killed()
    fail(story).triggered()
    Projector().run_once()

    assert waits_s(timezone.now() + timedelta(hours=1)) == 0.0


def test_buffered_bytes_are_summed_and_unknown_while_the_driver_is_silent() -> None:
    running()
    at = Sample.objects.get().at

    assert read(at)[Watched.BUFFERED_BYTES] == 8 * 300.0  # for each of 8 subtasks
    assert read(at + timedelta(seconds=100))[Watched.BUFFERED_BYTES] is Absent.UNKNOWN
    Run.objects.update(status=JobStatus.FAILED.value)
    assert read(at)[Watched.BUFFERED_BYTES] is Absent.OVER


def test_unread_records_are_summed_over_the_sources_that_know_them() -> None:
    running()
    sample = Sample.objects.get()

    assert read(sample.at)[Watched.RECORDS_BEHIND] == 2 * 700.0
    assert read(sample.at + timedelta(seconds=100))[Watched.RECORDS_BEHIND] is Absent.UNKNOWN
    for subtask in sample.subtasks:
        del subtask["pending_records"]  # as older engines report it
    sample.save()
    assert read(sample.at)[Watched.RECORDS_BEHIND] is Absent.UNKNOWN
    Run.objects.update(status=JobStatus.FAILED.value)
    assert read(sample.at)[Watched.RECORDS_BEHIND] is Absent.OVER


def test_event_time_lag_is_measured_against_the_clock() -> None:
    running()
    now = timezone.now()
    Run.objects.update(watermark_ms=int(1000 * now.timestamp()) - 5_000)

    assert read(now)[Watched.EVENT_TIME_LAG] == pytest.approx(5.0, abs=0.01)
    Run.objects.update(watermark_ms=None)
    assert read(now)[Watched.EVENT_TIME_LAG] is Absent.UNKNOWN


def running(name: str = "flights", *, checkpoint: bool = True) -> Run:
    run = new_run(name)
    story = Story(run).started().sampled()
    if checkpoint:
        story.completed()
    Projector().run_once()
    return run


def all_alerts() -> list[Alert]:
    return list(Alert.objects.select_related("pipeline"))


def fail(
    story: Story, reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_EXPIRED
) -> Story:
    failed = CheckpointFailed(
        checkpoint_id=story.next_checkpoint, reason=reason, message="too slow"
    )
    story.triggered().wait(5).tell(failed)
    story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
    return story


def complete(story: Story) -> Story:
    """Completes a checkpoint without a commit."""
    number = story.next_checkpoint
    story.triggered().wait(5).tell(checkpoint_completed(number, CheckpointKind.CHECKPOINT, ""))
    story.next_checkpoint = CheckpointId(number + 1)
    return story


def waits_s(now: datetime) -> Reading:
    return read(now)[Watched.COMMIT_WAIT]


def completed(run: Run, at: datetime) -> None:
    Run.objects.filter(pk=run.pk).update(last_completed_at=at)


def fired(began: datetime) -> None:
    completed(running(), began - timedelta(seconds=100))
    made(Watched.SINCE_CHECKPOINT)
    evaluate(began)
    evaluate(began + timedelta(seconds=10))
    assert len(queries.firing()) == 1


def made(
    watched: Watched, band: Band = BAND, pipeline: str | None = None, name: str = "late"
) -> None:
    services.make_rule(
        name=name, watched=watched, pipeline=pipeline, band=band, requester="ada", reason="drill"
    )


def read(now: datetime | None = None) -> dict[Watched, Reading]:
    [found] = readings(now or timezone.now())
    return dict(found.values)
