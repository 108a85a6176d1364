"""Flink's bodies about the cluster and its jobs: field by field, and their values."""

import pytest
from django.utils import timezone

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from ftdash.jobs.models import Request
from ftdash.metrics.models import Heartbeat
from ftdash.projection.projector import Projector
from pipelines.domain.events import FailureOccurred
from pipelines.domain.ids import Uid, operator_id
from pipelines.domain.status import JobStatus
from tests.web.api_callers import bearer, beat
from tests.web.flink_expectations import SHAPES, differences
from tests.web.flink_reading import JOB, read
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site", "patient")

ROUTES = [
    "config",
    "overview",
    "applications/overview",
    "jobs",
    "jobs/overview",
    "jobs/ID",
    "jobs/ID/status",
    "jobs/ID/plan",
    "jobs/ID/config",
    "jobs/ID/exceptions",
    "jobs/ID/accumulators",
    "jobs/ID/jobmanager/config",
    "applications/ID",
    "applications/ID/exceptions",
    "jobmanager/config",
    "jobmanager/metrics",
]


def test_a_body_has_flinks_fields_and_no_others() -> None:
    failed_and_recovered()

    assert [d for route in ROUTES for d in differences(read(route), SHAPES[route], route)] == []


def test_a_run_that_has_not_reported_yet_has_the_same_shape() -> None:
    new_run()

    assert [d for route in ROUTES for d in differences(read(route), SHAPES[route], route)] == []


def test_a_job_is_reported_with_its_state_times_and_tasks() -> None:
    failed_and_recovered()

    (line,) = read("jobs/overview")["jobs"]

    assert (line["jid"], line["name"], line["state"]) == (JOB, "flights", "RUNNING")
    assert (line["end-time"], line["tasks"]["running"], line["tasks"]["total"]) == (-1, 8, 8)
    assert line["start-time"] <= line["last-modification"]
    assert read("jobs/ID")["timestamps"]["RUNNING"] > line["start-time"]
    assert read("jobs/ID")["timestamps"]["SUSPENDED"] == 0


def test_the_plan_has_flinks_operator_ids_and_ship_strategies() -> None:
    failed_and_recovered()

    nodes = {node["id"]: node for node in read("jobs/ID/plan")["plan"]["nodes"]}
    join = nodes[operator_id(Uid("join"))]

    assert [(each["num"], each["ship_strategy"]) for each in join["inputs"]] == [
        (0, "HASH"),
        (1, "HASH"),
    ]
    assert join["inputs"][0]["id"] == operator_id(Uid("flights"))
    assert "inputs" not in nodes[operator_id(Uid("flights"))]
    assert nodes[operator_id(Uid("flights"))]["description"] == "Source: flights<br/>"


def test_an_application_has_one_job_and_reports_what_ended_it() -> None:
    story = failed_and_recovered()
    lives = read("applications/ID")
    nothing = read("applications/ID/exceptions")["exceptionHistory"]["entries"]

    story.tell(FailureOccurred(cause="It broke.", vertex=Uid("join"), subtask=1, slot=0, detail=""))
    story.ended(JobStatus.FAILED)
    Projector().run_once()
    over = read("applications/ID")
    (entry,) = read("applications/ID/exceptions")["exceptionHistory"]["entries"]

    assert (lives["id"], lives["status"], nothing) == (JOB, "RUNNING", [])
    assert (lives["jobs"][0]["jid"], lives["timestamps"]["FAILED"]) == (JOB, 0)
    assert (over["status"], over["timestamps"]["FAILED"]) == ("FAILED", over["end-time"])
    assert (entry["exceptionName"], entry["jobId"]) == ("It broke.", JOB)


def test_the_cluster_configuration_shows_the_defaults_of_a_job() -> None:
    found = {each["key"]: each["value"] for each in read("jobmanager/config")}

    assert found["execution.checkpointing.mode"] == "EXACTLY_ONCE"
    assert len(found) > 50


def test_the_cluster_counts_its_slots_and_jobs() -> None:
    failed_and_recovered()

    assert read("jobmanager/metrics", get="taskSlotsTotal,numRunningJobs,nosuch") == [
        {"id": "taskSlotsTotal", "value": "1"},
        {"id": "numRunningJobs", "value": "1"},
    ]


def test_a_slot_is_a_task_manager_with_one_slot() -> None:
    failed_and_recovered()

    found = read("taskmanagers/flights-1-slot-1")

    assert differences(found, SHAPES["taskmanagers/ID"]) == []
    assert [each["jobId"] for each in found["allocatedSlots"]] == [JOB]
    for route in ("taskmanagers/flights-1-slot-1/metrics", "taskmanagers/metrics"):
        assert (read(route), read(route, get="x")) == ([], [])
    assert read("taskmanagers/metrics", get="x", taskmanagers="flights-1-slot-1,nosuch") == []
    assert read("taskmanagers/flights-1-slot-7", 404)


def test_the_parallelism_of_a_job_cannot_change_and_the_error_is_flinks() -> None:
    failed_and_recovered()
    wanted = {"v": {"parallelism": {"lowerBound": 1, "upperBound": 8}}}

    found = read("jobs/ID/resource-requirements", 500)
    address = f"/v1/jobs/{JOB}/resource-requirements"
    refused = bearer(TokenScope.ACT).put(address, wanted, content_type="application/json")

    assert (refused.status_code, refused.json()) == (500, found)
    assert not Request.objects.exists()
    assert differences(found, SHAPES["jobs/ID/resource-requirements"]) == []
    assert found["errors"][0] == "Internal server error."
    assert "UnsupportedOperationException" in found["errors"][1]
    assert read(f"jobs/{'0' * 32}/resource-requirements", 404)


def test_failures_come_newest_first_up_to_the_requested_number() -> None:
    failed_and_recovered().tell(
        FailureOccurred(cause="It broke.", vertex=Uid("join"), subtask=1, slot=0, detail="Trace")
    )
    Projector().run_once()

    history = read("jobs/ID/exceptions", maxExceptions="1")["exceptionHistory"]
    (entry,) = history["entries"]

    assert history["truncated"]
    assert (entry["exceptionName"], entry["stacktrace"]) == ("It broke.", "It broke.\nTrace")
    assert (entry["taskName"], entry["taskManagerId"]) == ("join (2/2)", "flights-1-slot-0")
    assert not read("jobs/ID/exceptions")["exceptionHistory"]["truncated"]


def test_a_filter_by_failure_label_matches_no_failure() -> None:
    failed_and_recovered()
    assert read("jobs/ID/exceptions")["exceptionHistory"]["entries"]

    for given in ("type:user", "type:user,team:flights", ":x"):
        found = read("jobs/ID/exceptions", failureLabelFilter=given)
        assert found == {"exceptionHistory": {"entries": [], "truncated": False}}
    for given in ("", "user", "type:", "type:user,x", "a:b:c"):
        refused = read("jobs/ID/exceptions", 400, failureLabelFilter=given)
        assert "failureLabelFilter" in refused["errors"][0]


def test_an_invalid_limit_is_refused() -> None:
    new_run()

    for given in ("0", "-1", "many", "1e3", "٣", "9" * 30):
        refused = read("jobs/ID/exceptions", 400, maxExceptions=given)
        assert "maxExceptions" in refused["errors"][0]


def test_a_job_without_heartbeats_is_not_shown_as_running() -> None:
    failed_and_recovered()
    Heartbeat.objects.all().delete()

    assert read("jobs/ID/status") == {"status": "RECONCILING"}
    assert read("jobs/ID")["status-counts"]["RUNNING"] == 0


@pytest.mark.parametrize(
    ("status", "field"),
    [
        (JobStatus.FINISHED, "jobs-finished"),
        (JobStatus.CANCELED, "jobs-cancelled"),
        (JobStatus.FAILED, "jobs-failed"),
    ],
)
def test_an_ended_job_is_counted_by_how_it_ended(status: JobStatus, field: str) -> None:
    Story(new_run()).started().ended(status)
    Projector().run_once()

    assert (read("overview")[field], read("overview")["jobs-running"]) == (1, 0)
    (line,) = read("jobs/overview")["jobs"]
    assert line["end-time"] > 0
    assert line["tasks"][status.value.lower()] == 8


def test_the_list_has_every_live_run_and_the_newest_ended_ones() -> None:
    living = new_run("old")
    for _ in range(55):
        new_run("many", status=JobStatus.FINISHED.value, ended_at=timezone.now())

    listed = {each["id"] for each in read("jobs")["jobs"]}

    assert len(listed) == 51
    assert job_id(living.run_id) in listed
    assert job_id("many-1") not in listed
    assert read(f"jobs/{job_id('many-1')}/status") == {"status": "FINISHED"}


def test_an_unknown_job_is_answered_with_an_error() -> None:
    for job, status in [("0" * 32, 404), ("ABC", 400), ("x" * 32, 400)]:
        assert list(read(f"jobs/{job}", status)) == ["errors"]


def test_a_new_run_is_found_after_an_earlier_lookup() -> None:
    first = new_run()
    assert read(f"jobs/{job_id(first.run_id)}/status")

    second = new_run("other")

    beat()
    assert read(f"jobs/{job_id(second.run_id)}/status") == {"status": "CREATED"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"restart-strategy.type": "none"}, "Restart deactivated."),
        (
            {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "10",
                "restart-strategy.fixed-delay.delay": "1 s",
            },
            "Restart with fixed delay (PT1S). #10 restart attempts.",
        ),
        (
            {"restart-strategy.type": "failure-rate"},
            "Failure rate restart with maximum of 1 failures within interval PT60S and fixed delay"
            " PT1S.",
        ),
        ({}, "Restart with exponential delay: starting at PT0.1S, increasing by"),
    ],
)
def test_the_restart_strategy_is_described_in_flinks_words(
    given: dict[str, str], sentence: str
) -> None:
    new_run(settings=given)

    assert read("jobs/ID/config")["execution-config"]["restart-strategy"].startswith(sentence)


def failed_and_recovered() -> Story:
    story = Story(new_run(settings={"execution.checkpointing.interval": "1 s"})).started()
    story.sampled().completed().slot_killed().sampled().completed()
    Projector().run_once()
    beat()
    return story
