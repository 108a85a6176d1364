"""Flink's bodies about vertices, slots and metrics: field by field, and their values."""

from typing import Any

import pytest

from ftdash.api.flink import vertices
from ftdash.api.flink.metrics import skew_percent, spread
from ftdash.api.flink.names import job_id
from ftdash.metrics.models import Sample
from ftdash.projection.projector import Projector
from pipelines.domain.ids import Uid, operator_id
from tests.web.api_callers import bearer, beat
from tests.web.flink_expectations import SHAPES, differences
from tests.web.flink_reading import JOB, read
from tests.web.journals import Story, give_parallelism, new_run

pytestmark = pytest.mark.usefixtures("site")

JOIN = operator_id(Uid("join"))
VERTEX = "jobs/ID/vertices/ID"
HERE = f"jobs/ID/vertices/{JOIN}"
TAILS = [
    "",
    "/backpressure",
    "/subtasktimes",
    "/watermarks",
    "/taskmanagers",
    "/accumulators",
    "/subtasks/accumulators",
    "/subtasks/0",
    "/subtasks/0/attempts/0",
    "/subtasks/0/metrics",
]


def test_bodies_have_flinks_fields_and_no_others() -> None:
    running()

    for tail in TAILS:
        assert differences(read(HERE + tail), SHAPES[VERTEX + tail], tail) == []
    for route in ("taskmanagers", "jobs/ID/metrics", "jobs/ID/execution-result"):
        assert differences(read(route), SHAPES[route], route) == []
    found = read(f"{HERE}/subtasks/metrics", get="busyTimeMsPerSecond,nosuch")
    assert differences(found, SHAPES[f"{VERTEX}/subtasks/metrics?get"]) == []
    assert read(f"{HERE}/jm-operator-metrics") == []


def test_without_a_sample_no_values_are_invented() -> None:
    Story(new_run()).started()
    Projector().run_once()

    for tail in TAILS:
        if tail != "/backpressure":
            assert differences(read(HERE + tail), SHAPES[VERTEX + tail], tail) == []
    assert read(f"{HERE}/backpressure") == {"status": "deprecated"}
    assert read(f"{HERE}/subtasks/metrics", get="busyTimeMsPerSecond") == []
    assert not read(HERE)["subtasks"][0]["metrics"]["read-records-complete"]


def test_a_subtask_is_reported_with_its_slot_attempt_and_records() -> None:
    running().slot_killed().sampled()
    Projector().run_once()

    found = read(HERE)

    second = found["subtasks"][1]
    assert (second["attempt"], second["endpoint"]) == (1, "here")
    assert second["taskmanager-id"] == "flights-1-slot-1"
    assert second["metrics"]["read-records"] == 10
    assert (second["metrics"]["read-bytes"], second["metrics"]["write-bytes"]) == (800, 900)
    assert found["aggregated"]["metrics"]["write-bytes"]["sum"] == 1_800
    assert second["metrics"]["accumulated-busy-time"] == 5_000
    assert second["metrics"]["accumulated-backpressured-time"] == 1_000
    assert second["metrics"]["accumulated-idle-time"] == 4_000
    assert found["aggregated"]["metrics"]["read-records"]["sum"] == 20
    assert second["start-time"] == second["start_time"]


def test_bytes_that_an_older_engine_did_not_count_are_not_complete() -> None:
    running()
    sample = Sample.objects.get()
    for each in sample.subtasks:
        del each["bytes_in"]
    sample.save()

    told = read(HERE)["subtasks"][1]["metrics"]

    assert (told["read-bytes"], told["read-bytes-complete"]) == (0, False)
    assert (told["write-bytes"], told["write-bytes-complete"]) == (900, True)
    names = [each["id"] for each in read(f"{HERE}/subtasks/1/metrics")]
    assert ("numBytesIn" in names, "numBytesOut" in names) == (False, True)


def test_slots_of_an_ended_run_are_not_listed() -> None:
    Story(new_run()).started().sampled().ended()
    Projector().run_once()

    assert read("taskmanagers")["taskmanagers"] == []
    assert "flights-1-slot-0" in read("taskmanagers/flights-1-slot-0", 404)["errors"][0]
    first = read(HERE)["subtasks"][0]
    assert (first["endpoint"], first["taskmanager-id"]) == ("(unassigned)", "(unassigned)")
    assert read("jobs/ID/execution-result") == {"status": {"id": "COMPLETED"}}


def test_a_subtask_alone_has_the_same_figures_as_in_its_vertex() -> None:
    running().slot_killed().sampled()
    Projector().run_once()
    # The times advance between two requests.
    moving = {"duration", "status-duration"}

    whole, alone, attempt = (
        {name: value for name, value in body.items() if name not in moving}
        for body in (
            read(HERE)["subtasks"][1],
            read(f"{HERE}/subtasks/1"),
            read(f"{HERE}/subtasks/1/attempts/1"),
        )
    )

    assert whole == alone == attempt
    assert read(f"{HERE}/subtasks/1/metrics", get="numRecordsIn") == [
        {"id": "numRecordsIn", "value": "10"}
    ]
    for index, status in [("2", 404), ("-1", 400), ("x", 400), ("1/attempts/0", 404)]:
        assert "errors" in read(f"{HERE}/subtasks/{index}", status), index


def test_a_vertex_with_its_own_parallelism_has_that_many_subtasks() -> None:
    running()
    give_parallelism("flights-1", "join", 3)

    found = read(HERE)
    assert (found["parallelism"], len(found["subtasks"])) == (3, 3)
    assert len(read(f"{HERE}/subtasktimes")["subtasks"]) == 3
    assert len(read(f"{HERE}/taskmanagers")["taskmanagers"]) == 3
    assert read(f"{HERE}/subtasks/2")["subtask"] == 2
    assert "errors" in read(f"{HERE}/subtasks/3", 404)
    job = read("jobs/ID")
    assert {each["name"]: each["parallelism"] for each in job["vertices"]} == {
        "Source: flights": 2,
        "Source: weather": 2,
        "join": 3,
        "delays": 2,
    }
    assert sum(each["tasks"]["RUNNING"] for each in job["vertices"]) == 9


def test_user_functions_have_no_accumulators() -> None:
    running()

    found = read(f"{HERE}/subtasks/accumulators")

    assert (found["parallelism"], len(found["subtasks"])) == (2, 2)
    assert found["subtasks"][1] == {
        "subtask": 1,
        "attempt": 0,
        "endpoint": "here",
        "user-accumulators": [],
    }


def test_backpressure_is_the_worst_of_the_subtasks() -> None:
    running()
    sample = Sample.objects.get()
    for each in sample.subtasks:
        if (each["vertex"], each["subtask"]) == ("join", 1):
            each["backpressured_ratio"] = 0.6
    sample.save()

    found = read(f"{HERE}/backpressure")

    assert (found["backpressureLevel"], found["backpressure-level"]) == ("high", "high")
    assert [each["backpressureLevel"] for each in found["subtasks"]] == ["ok", "high"]


@pytest.mark.parametrize(
    ("ratio", "level"), [(0.0, "ok"), (0.1, "ok"), (0.11, "low"), (0.5, "low"), (0.51, "high")]
)
def test_backpressure_levels_begin_at_flinks_thresholds(ratio: float, level: str) -> None:
    assert vertices.level(ratio) == level


def test_only_vertices_with_inputs_have_input_watermarks() -> None:
    running()

    assert read(f"{HERE}/watermarks") == [
        {"id": "0.currentInputWatermark", "value": "1357000000000"},
        {"id": "1.currentInputWatermark", "value": "1357000000001"},
    ]
    assert read(f"jobs/ID/vertices/{operator_id(Uid('flights'))}/watermarks") == []


def test_metrics_are_listed_and_then_read_by_name() -> None:
    running()

    names = [each["id"] for each in read("jobs/ID/metrics")]
    found = read("jobs/ID/metrics", get="numberOfCompletedCheckpoints,lastCheckpointSize,nosuch")

    assert "lastCheckpointDuration" in names
    assert found == [
        {"id": "numberOfCompletedCheckpoints", "value": "1"},
        {"id": "lastCheckpointSize", "value": "800"},
    ]
    assert {"id": "0.numRecordsIn", "value": "10"} in read(f"{HERE}/metrics", get="0.numRecordsIn")


def test_metrics_over_subtasks_and_jobs_are_aggregated_as_asked() -> None:
    running()

    (busy,) = read(f"{HERE}/subtasks/metrics", get="busyTimeMsPerSecond")
    assert busy == pytest.approx(
        {"id": "busyTimeMsPerSecond", "min": 500, "max": 500, "avg": 500, "sum": 1000, "skew": 0}
    )
    (total,) = read("jobs/metrics", get="totalNumberOfCheckpoints", agg="sum,max")
    assert total == {"id": "totalNumberOfCheckpoints", "sum": 1.0, "max": 1.0}
    assert "agg takes" in read("jobs/metrics", 400, get="x", agg="mode")["errors"][0]
    assert {"id": "numRestarts"} in read("jobs/metrics")


def test_only_the_requested_subtasks_are_aggregated() -> None:
    running()
    sample = Sample.objects.get()
    for each in sample.subtasks:
        each["records_in"] = 10 + each["subtask"]
    sample.save()

    def total(subtasks: str) -> list[float]:
        route = f"{HERE}/subtasks/metrics"
        found = read(route, get="numRecordsIn", agg="sum", subtasks=subtasks)
        return [each["sum"] for each in found]

    assert [total(each) for each in ("0", "1", "0-1", " 0 , 1", "1-7")] == [
        [10.0],
        [11.0],
        [21.0],
        [21.0],
        [11.0],
    ]
    # A missing index and an invalid range select nothing.
    for given in ("2", "1-0", "x", "", "-1", "0-", "0x1", "٠", "9" * 30):
        assert total(given) == [], given
    assert read(f"{HERE}/subtasks/metrics", subtasks="2") == []
    assert total("x,1") == [11.0]


def test_only_the_requested_jobs_are_aggregated() -> None:
    running()
    Story(new_run("other")).started().completed().completed()
    Projector().run_once()
    other, nobody = job_id("other-1"), "0" * 32

    def total(jobs: str) -> list[float]:
        found = read("jobs/metrics", get="totalNumberOfCheckpoints", agg="sum", jobs=jobs)
        return [each["sum"] for each in found]

    assert total(f"{JOB},{other}") == [3.0]
    assert (total(JOB), total(other)) == ([1.0], [2.0])
    assert (total(nobody), total(f"{nobody},{JOB}")) == ([], [1.0])
    for given in ("", "x", f"{JOB},"):
        assert "(jobs)" in read("jobs/metrics", 400, jobs=given)["errors"][0]


def test_a_repeated_parameter_extends_the_list() -> None:
    running()

    found = bearer().get(f"/v1/jobs/{JOB}/metrics?get=numRestarts&get=totalNumberOfCheckpoints")

    assert [each["id"] for each in found.json()] == ["numRestarts", "totalNumberOfCheckpoints"]


def test_unknown_names_are_not_found() -> None:
    running()

    assert read(f"jobs/ID/vertices/{'0' * 32}", 404)
    assert read("jobs/ID/vertices/x", 400)
    assert read("jobs/ID/rescales/overview", 404) == {
        "errors": [f"Unable to load requested file /v1/{path()}/rescales/overview."]
    }


def path() -> str:
    return str(read("jobs")["jobs"][0]["id"]).join(["jobs/", ""])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], (0, 0, 0, 0)), ([7], (7, 7, 7, 7)), ([3, 1, 2], (1, 3, 2, 6))],
)
def test_a_spread_is_in_whole_numbers(values: list[int], expected: Any) -> None:
    found = spread(values)

    assert (found.min, found.max, found.avg, found.sum) == expected


def test_skew_is_the_mean_distance_in_percent_of_the_mean() -> None:
    assert skew_percent([0.0, 0.0]) == 0
    assert skew_percent([5.0, 5.0]) == 0
    assert skew_percent([0.0, 10.0]) == 100
    assert skew_percent([5.0, 15.0]) == 50


def running() -> Story:
    story = Story(new_run()).started().sampled().completed()
    Projector().run_once()
    beat()
    return story
