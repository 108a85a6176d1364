"""GET /metrics: Flink's names, types and labels, our own metrics, and only known values."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from ftdash.flink_clusters.services import looking, registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.events import (
    CheckpointFailed,
    FailureOccurred,
    JobStatusChanged,
    MetricsSampled,
    RestorePointRefused,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid, operator_id
from pipelines.domain.status import CheckpointKind, JobStatus
from tests.web.api_callers import bearer
from tests.web.journals import (
    Story,
    StoryClock,
    checkpoint_completed,
    new_request,
    new_run,
    quarantined,
    sample,
)
from tests.web.recorded_flink import recorded_flink
from tests.web.watched import listener, progress, report

NAMES = Path(__file__).parent / "prometheus_names.txt"
OF_FLINK = Path(__file__).parent / "flink_prometheus.txt"
TYPE_FROM_THE_DOCUMENTS = {
    f"flink_taskmanager_job_task_{name}": "gauge"
    for name in (
        "backPressuredTimeMsPerSecond",
        "accumulateBusyTimeMs",
        "accumulateIdleTimeMs",
        "Shuffle_Netty_Input_Buffers_inputQueueSize",
    )
}
"""Flink's excerpt shows them without a type. Its reporter writes gauges, counters and meters as
gauges, and its documents call these gauges."""

ONLY_IN_THE_DOCUMENTS = {
    "flink_taskmanager_job_task_operator_pendingRecords": "the job's source did not tell it",
}
"""Flink's names that the job had no reason to serve."""

RUN = {"pipeline": "flights", "run": "flights-1"}
JOIN = operator_id(Uid("join"))
JOB = "flink_jobmanager_job_"
TASK = "flink_taskmanager_job_task_"
Served = dict[str, list[tuple[dict[str, str], float]]]

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture(autouse=True)
def patience(settings: Any) -> None:
    """Keeps the test's reports from going stale while a slow machine takes its time."""
    settings.SILENT_AFTER_S = 120.0


def test_names_types_and_labels_are_the_expected_ones(operator: Client) -> None:
    run = new_run()
    new_request(run)
    story = eventful(run)
    fold(story)
    report(listener(), progress(0, at=timezone.now()))
    with recorded_flink("2.3") as flink:
        place = Place(address=flink.address)
        looking.look(registration.watch(name="prod", place=place, requester="a", reason="x").pk)

    served = {
        (f"{family.name}_total" if family.type == "counter" else family.name): (
            family.type,
            ",".join(sorted(family.samples[0].labels)),
        )
        for family in text_string_to_metric_families(text_of(operator))
    }

    assert served == read_names(NAMES)


def test_metrics_with_flinks_names_have_flinks_types_and_labels() -> None:
    of_flink, ours = read_names(OF_FLINK), read_names(NAMES)

    called = {name: told for name, told in ours.items() if name.startswith("flink_")}
    types = {name: kind for name, (kind, _) in of_flink.items() if kind != "-"}

    assert len(called) > 30
    assert set(called) - set(of_flink) == set(ONLY_IN_THE_DOCUMENTS)
    for name in set(called) & set(of_flink):
        kind, labels = called[name]
        assert labels == of_flink[name][1], name
        assert kind == (types | TYPE_FROM_THE_DOCUMENTS)[name], name
    assert not set(types) & set(TYPE_FROM_THE_DOCUMENTS)


def test_a_subtask_is_described_in_flinks_words_and_units(operator: Client) -> None:
    fold(eventful(new_run("page-views")))

    served = served_to(operator)

    join = {"task_id": JOIN, "subtask_index": "1"}
    assert value(served, f"{TASK}busyTimeMsPerSecond", **join) == 500
    assert value(served, f"{TASK}backPressuredTimeMsPerSecond", **join) == 100
    assert value(served, f"{TASK}idleTimeMsPerSecond", **join) == 400
    assert value(served, f"{TASK}accumulateBusyTimeMs", **join) == 5_000
    assert value(served, f"{TASK}accumulateBackPressuredTimeMs", **join) == 1_000
    assert value(served, f"{TASK}accumulateIdleTimeMs", **join) == 4_000
    assert value(served, f"{TASK}checkpointAlignmentTime", **join) == 61e6
    assert value(served, f"{TASK}checkpointStartDelayNanos", **join) == 2e6
    assert value(served, f"{TASK}currentInputWatermark", **join) == 1_357_000_000_001
    assert value(served, f"{TASK}Shuffle_Netty_Input_Buffers_inputQueueSize", **join) == 300
    labels = labels_of(served, f"{TASK}numRecordsIn", **join)
    assert labels == {
        "host": "here",
        "job_id": job_id("page-views-1"),
        "job_name": "page_views",
        "subtask_index": "1",
        "task_attempt_id": f"{job_id('page-views-1')}_{JOIN}_1_1",
        "task_attempt_num": "1",
        "task_id": JOIN,
        "task_name": "join",
        "tm_id": "page_views_1_slot_1",
    }


def test_metrics_of_functions_are_served_for_each_subtask(operator: Client) -> None:
    fold(eventful(new_run()))

    served = served_to(operator)

    whose = RUN | {"operator": "join", "subtask": "1"}
    assert served["ftdash_user_counter"][1] == (whose | {"name": "matches"}, 11)
    assert served["ftdash_user_gauge"][1] == (whose | {"name": "open_rows"}, 0.25)
    assert served["ftdash_user_histogram_count"][1] == (whose | {"name": "delay_ms"}, 10)
    of_values = {
        labels["statistic"]: value
        for labels, value in served["ftdash_user_histogram"]
        if labels["subtask"] == "1"
    }
    assert of_values == {"min": 1.5, "max": 91, "mean": 10, "p50": 8, "p95": 41, "p99": 80}


def test_a_source_has_an_output_watermark_and_no_input_watermark(operator: Client) -> None:
    fold(eventful(new_run()))

    served = served_to(operator)

    makes = f"{TASK}operator_currentOutputWatermark"
    assert value(served, makes, operator_name="flights", subtask_index="1") == 1_357_000_000_001
    pending = f"{TASK}operator_pendingRecords"
    assert value(served, pending, operator_name="flights", subtask_index="1") == 700
    assert {labels["operator_name"] for labels, _ in served[pending]} == {"flights"}
    readers = {labels["task_name"] for labels, _ in served[f"{TASK}currentInputWatermark"]}
    assert readers == {"join", "delays"}


def test_a_job_is_described_in_flinks_words_and_units(operator: Client) -> None:
    run = new_run()
    fold(eventful(run))

    served = served_to(operator)

    assert value(served, f"{JOB}totalNumberOfCheckpoints") == 4
    assert value(served, f"{JOB}numberOfCompletedCheckpoints") == 2
    assert value(served, f"{JOB}numberOfInProgressCheckpoints") == 1
    assert value(served, f"{JOB}numberOfFailedCheckpoints") == 1
    assert value(served, f"{JOB}lastCompletedCheckpointId") == 2
    assert value(served, f"{JOB}lastCheckpointDuration") == 80
    assert value(served, f"{JOB}lastCheckpointSize") == 800
    assert value(served, f"{JOB}lastCheckpointFullSize") == 8000
    assert value(served, f"{JOB}numRestarts") == 1
    assert value(served, f"{JOB}downtime") == 0
    assert value(served, f"{JOB}restartingTime") == 0
    assert value(served, f"{JOB}uptime") == value(served, f"{JOB}runningTime") > 0
    completed_ms = value(served, f"{JOB}lastCheckpointCompletedTimestamp")
    completed = run.checkpoint_rows.get(checkpoint_id=2).completed_at
    assert completed is not None
    assert completed_ms == pytest.approx(completed.timestamp() * 1000, abs=1)


def test_metrics_that_flink_does_not_have_carry_the_prefix_of_ftdash(operator: Client) -> None:
    fold(eventful(new_run()))

    served = served_to(operator)

    assert value(served, "ftdash_last_recovery_seconds", **RUN) == pytest.approx(0.3)
    assert value(served, "ftdash_last_recovery_phase_seconds", phase="stop") == 0.105
    assert value(served, "ftdash_refused_zombies_total", **RUN) == 1
    assert value(served, "ftdash_refused_points_total", **RUN) == 1
    assert value(served, "ftdash_quarantined_records_total", **RUN) == 1
    assert value(served, "ftdash_checkpoint_failures_total", reason="CHECKPOINT_EXPIRED") == 1
    assert value(served, "ftdash_last_checkpoint_buffered_records", **RUN) == 2440
    assert value(served, "ftdash_last_checkpoint_buffered_bytes", **RUN) == 244_000
    assert value(served, "ftdash_operator_count", operator="join") == 3
    assert value(served, "ftdash_queued_records", operator="join", subtask="0") == 3
    assert value(served, "ftdash_slot_resident_bytes", slot="1") == 2e8
    assert value(served, "ftdash_pipeline_state", state="RUNNING") == 1
    assert value(served, "ftdash_pipeline_state", state="FAILED") == 0
    assert value(served, "ftdash_process_up", process="projector") == 1
    assert value(served, "ftdash_process_up", process="reconcile") == 0


def test_completed_checkpoints_and_committed_output_have_separate_clocks(
    operator: Client, no_time_passes: datetime
) -> None:
    fold(Story(new_run()).started().completed())
    Run.objects.update(
        last_completed_at=no_time_passes - timedelta(seconds=20),
        last_committed_at=no_time_passes - timedelta(seconds=50),
    )

    served = served_to(operator)

    assert value(served, "ftdash_since_completed_checkpoint_seconds", **RUN) == 20
    assert value(served, "ftdash_since_committed_output_seconds", **RUN) == 50


def test_records_per_second_average_the_last_minute_of_one_attempt(operator: Client) -> None:
    story = Story(new_run(), ago(70_000)).started().sampled(records=0)
    story.wait(50_000).sampled(records=6_000).wait(20_000).sampled(records=10_000)
    fold(story)

    served = served_to(operator)

    rate = value(served, f"{TASK}numRecordsInPerSecond", task_name="join")
    assert rate == pytest.approx(200)  # (10,000 - 6,000) / 20 s: the first sample is too old
    read = value(served, f"{TASK}numBytesInPerSecond", task_name="join")
    assert read == pytest.approx(200 * 80)
    assert value(served, f"{TASK}numBytesOut", task_name="join") == 900_000


def test_a_rate_needs_two_samples_of_the_same_attempt(operator: Client) -> None:
    fold(Story(new_run(), ago(2_000)).started().sampled().slot_killed().sampled(records=5))

    served = served_to(operator)

    assert f"{TASK}numRecordsInPerSecond" not in served
    assert value(served, f"{TASK}numRecordsIn", task_name="join") == 5


def test_the_commit_wait_is_how_long_output_has_been_uncommitted(operator: Client) -> None:
    story = Story(new_run(), ago(300_000)).started().completed()
    fold(story)
    assert value(served_to(operator), "ftdash_commit_wait_seconds", **RUN) == 0

    story.triggered().wait(5)
    story.tell(checkpoint_completed(story.next_checkpoint, CheckpointKind.CHECKPOINT, ""))
    fold(story)

    assert 290 < value(served_to(operator), "ftdash_commit_wait_seconds", **RUN) < 350


def test_unknown_values_are_absent_rather_than_zero(operator: Client) -> None:
    fold(Story(new_run()).started())

    served = served_to(operator)

    assert value(served, f"{JOB}totalNumberOfCheckpoints") == 0
    for name in (
        f"{JOB}lastCheckpointDuration",
        f"{JOB}lastCompletedCheckpointId",
        f"{JOB}lastCheckpointRestoreTimestamp",
        f"{TASK}busyTimeMsPerSecond",
        "ftdash_since_completed_checkpoint_seconds",
        "ftdash_since_committed_output_seconds",
        "ftdash_last_recovery_seconds",
        "ftdash_records_read_per_second",
    ):
        assert name not in served


@pytest.mark.parametrize("watermark_ms", [None, MIN_WATERMARK_MS, MAX_WATERMARK_MS])
def test_a_watermark_that_is_unset_or_has_ended_is_absent(
    operator: Client, watermark_ms: int | None
) -> None:
    fold(Story(new_run()).started().tell(sample_with_watermarks(watermark_ms)))

    served = served_to(operator)

    assert f"{TASK}busyTimeMsPerSecond" in served
    assert f"{TASK}currentInputWatermark" not in served


def test_a_silent_run_has_no_load_metrics_but_its_clocks_continue(operator: Client) -> None:
    fold(Story(new_run(), ago(300_000)).started().sampled().completed())

    served = served_to(operator)

    assert value(served, "ftdash_pipeline_state", state="STALE") == 1
    assert value(served, "ftdash_since_completed_checkpoint_seconds", **RUN) > 250
    assert value(served, "ftdash_report_age_seconds", **RUN) > 250
    assert not [name for name in served if name.startswith("flink_")]
    assert "ftdash_queued_records" not in served
    assert "ftdash_operator_count" not in served


def test_a_missing_projector_is_reported_and_hides_flinks_metrics(operator: Client) -> None:
    fold(Story(new_run()).started().sampled())
    Heartbeat.objects.all().delete()

    served = served_to(operator)

    assert value(served, "ftdash_process_up", process="projector") == 0
    assert value(served, "ftdash_pipeline_state", state="UNKNOWN") == 1
    assert not [name for name in served if name.startswith("flink_")]


def test_a_restarting_run_has_downtime_and_no_load_of_the_previous_attempt(
    operator: Client,
) -> None:
    story = Story(new_run(), ago(2_000)).started().sampled()
    story.wait(300).tell(
        FailureOccurred(cause="Slot 1 is gone.", slot=1),
        JobStatusChanged(status=JobStatus.FAILING, reason="Slot 1 is gone."),
    )
    story.wait(500).tell(JobStatusChanged(status=JobStatus.RESTARTING, reason="Slot 1 is gone."))
    story.attempt = Attempt(2)
    fold(story.wait(500).tell(JobStatusChanged(status=JobStatus.INITIALIZING)))

    served = served_to(operator)

    assert value(served, f"{JOB}uptime") == 0
    deploying_ms = value(served, f"{JOB}deployingTime")
    assert value(served, f"{JOB}downtime") == pytest.approx(deploying_ms + 1_000)
    assert value(served, f"{JOB}runningTime") == 0
    assert f"{TASK}busyTimeMsPerSecond" not in served


def test_an_ended_run_serves_its_state_but_no_flink_metrics_or_clocks(operator: Client) -> None:
    fold(eventful(new_run()).ended())

    served = served_to(operator)

    assert value(served, "ftdash_pipeline_state", state="FINISHED") == 1
    assert not [name for name in served if name.startswith("flink_")]
    assert "ftdash_since_completed_checkpoint_seconds" not in served


def test_a_pipeline_that_never_ran_is_listed(operator: Client) -> None:
    new_run().delete()

    assert value(served_to(operator), "ftdash_pipeline_state", state="NEVER_STARTED") == 1


def test_an_unruly_operator_name_cannot_break_a_line(operator: Client) -> None:
    story = Story(new_run()).started()
    unruly = 'a"b\\c\nftdash_process_up{process="x"} 1'
    told = MetricsSampled(
        status=JobStatus.RUNNING,
        records_per_s=1.0,
        last_completed_ms=None,
        last_committed_ms=None,
        subtasks=[],
        slots=[],
        counters={f"{unruly}.late_records": 7},
    )
    fold(story.tell(told))

    served = served_to(operator)

    assert value(served, "ftdash_operator_count", operator=unruly) == 7
    assert len(served["ftdash_process_up"]) == 2


def test_open_metrics_are_served_on_request(operator: Client) -> None:
    fold(eventful(new_run()))

    answer = operator.get("/metrics", headers={"accept": "application/openmetrics-text"})

    assert answer["Content-Type"].startswith("application/openmetrics-text")
    families = {family.name for family in open_metrics_families(answer.content.decode())}
    assert {"ftdash_refused_zombies", f"{JOB}numRestarts"} <= families


def test_a_read_token_opens_the_metrics() -> None:
    fold(eventful(new_run()))

    assert value(served_to(bearer(TokenScope.READ)), f"{JOB}numRestarts") == 1


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer ftd_guessed"}])
def test_a_caller_without_a_session_or_valid_token_gets_no_metrics(headers: dict[str, str]) -> None:
    answer = Client().get("/metrics", headers=headers)

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert b"flink_" not in answer.content


def test_the_metrics_refuse_a_post(admin: Client) -> None:
    assert admin.post("/metrics").status_code == 405


def test_a_scrape_costs_few_queries(operator: Client, django_assert_max_num_queries: Any) -> None:
    fold(eventful(new_run()))

    with django_assert_max_num_queries(26):
        text_of(operator)


def read_names(file: Path) -> dict[str, tuple[str, str]]:
    """Returns type and labels by name."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: (kind, labels) for name, kind, labels in map(str.split, lines)}


def eventful(run: Run) -> Story:
    """Tells one of everything: a recovery, a failed checkpoint, refusals; the run continues."""
    story = Story(run, ago(2_500)).started().completed().slot_killed().completed()
    story.triggered().tell(
        CheckpointFailed(
            checkpoint_id=story.next_checkpoint,
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message="5 of 8 subtasks had acknowledged.",
        ),
        RestorePointRefused(path="chk-1", message="chk-1/a.arrow is truncated."),
        ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 acknowledged"),
        quarantined(7, count=1),
    )
    story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
    return story.triggered().sampled().wait(1_000).sampled()


def sample_with_watermarks(watermark_ms: int | None) -> MetricsSampled:
    plain = sample(1.0, 1)
    return msgspec.structs.replace(
        plain,
        subtasks=[msgspec.structs.replace(s, watermark_ms=watermark_ms) for s in plain.subtasks],
    )


def ago(milliseconds: int) -> StoryClock:
    clock = StoryClock()
    clock.now_ms -= milliseconds
    return clock


def fold(story: Story) -> None:
    projector = Projector()
    while projector.run_once():
        pass


def text_of(client: Client) -> str:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return answer.content.decode()


def served_to(client: Client) -> Served:
    """Returns the samples by name."""
    found: Served = {}
    for family in text_string_to_metric_families(text_of(client)):
        for each in family.samples:
            found.setdefault(each.name, []).append((dict(each.labels), each.value))
    return found


def one(served: Served, name: str, labels: dict[str, str]) -> tuple[dict[str, str], float]:
    fitting = [each for each in served[name] if labels.items() <= each[0].items()]
    return fitting[0]


def value(served: Served, name: str, **labels: str) -> float:
    return one(served, name, labels)[1]


def labels_of(served: Served, name: str, **labels: str) -> dict[str, str]:
    return one(served, name, labels)[0]
