"""Flink's bodies about checkpoints: field by field, and equal to the rows."""

from pathlib import Path
from typing import get_args

import pytest

from ftdash.checkpoints.models import Checkpoint, SubtaskPhase
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import StopWithSavepoint, TakeSavepoint
from pipelines.domain.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    EngineEvent,
    SubtaskAcknowledged,
)
from pipelines.domain.ids import CheckpointId, Uid, operator_id
from pipelines.domain.status import CheckpointKind, SavepointFormat
from tests.web.api_callers import beat
from tests.web.flink_expectations import SHAPES, differences
from tests.web.flink_reading import read
from tests.web.journals import Story, new_request, new_run, phases

pytestmark = pytest.mark.usefixtures("site")

ROOT = Path(__file__).parents[2]
LIST = "jobs/ID/checkpoints"
DETAIL = "jobs/ID/checkpoints/details/N"
SUBTASKS = "jobs/ID/checkpoints/details/N/subtasks/ID"
JOIN = operator_id(Uid("join"))


def test_bodies_have_flinks_fields_and_no_others() -> None:
    eventful()

    assert differences(read(LIST), SHAPES[LIST]) == []
    assert differences(read(f"{LIST}/config"), SHAPES[f"{LIST}/config"]) == []
    for number in (1, 2, 3, 4):
        assert differences(read(f"{LIST}/details/{number}"), SHAPES[DETAIL]) == []
        found = read(f"{LIST}/details/{number}/subtasks/{JOIN}")
        assert differences(found, SHAPES[SUBTASKS]) == []


def test_a_run_without_checkpoints_has_the_same_shape_and_no_quantiles() -> None:
    new_run()

    found = read(LIST)

    assert differences(found, SHAPES[LIST]) == []
    assert found["summary"]["state_size"] == {
        "min": 0,
        "max": 0,
        "avg": 0,
        **dict.fromkeys(("p50", "p90", "p95", "p99", "p999"), "NaN"),
    }
    assert found["history"] == []


def test_the_answer_has_counts_and_the_latest_checkpoint_of_each_kind() -> None:
    eventful()

    found = read(LIST)

    assert found["counts"] == {
        "restored": 1,
        "total": 5,
        "in_progress": 1,
        "completed": 2,
        "failed": 2,
    }
    latest = found["latest"]
    assert (latest["completed"]["id"], latest["completed"]["discarded"]) == (1, True)
    assert (latest["savepoint"]["id"], latest["savepoint"]["savepointFormat"]) == (2, "NATIVE")
    assert latest["failed"]["id"] == 3
    assert latest["failed"]["failure_message"].endswith("5 of 8 subtasks had acknowledged.")
    assert latest["restored"]["id"] == 2
    assert latest["restored"]["is_savepoint"]
    assert [each["id"] for each in found["history"]] == [4, 3, 2, 1]


def test_the_figures_of_a_checkpoint_use_flinks_names() -> None:
    eventful()

    (first,) = [each for each in read(LIST)["history"] if each["id"] == 1]

    assert first["status"] == "COMPLETED"
    assert first["end_to_end_duration"] == 80
    assert first["latest_ack_timestamp"] - first["trigger_timestamp"] == 75
    assert (first["checkpointed_size"], first["state_size"]) == (800, 8000)
    assert (first["num_subtasks"], first["num_acknowledged_subtasks"]) == (8, 8)
    assert (first["checkpoint_type"], first["tasks"]) == ("CHECKPOINT", {})


def test_details_have_every_vertex_whether_it_has_acknowledged_or_not() -> None:
    eventful()

    under_way = read(f"{LIST}/details/4")

    assert set(under_way["tasks"]) == {
        operator_id(Uid(uid)) for uid in ("flights", "weather", "join", "delays")
    }
    join = under_way["tasks"][JOIN]
    assert (join["status"], join["num_acknowledged_subtasks"], join["num_subtasks"]) == (
        "IN_PROGRESS",
        1,
        2,
    )
    subtasks = read(f"{LIST}/details/4/subtasks/{JOIN}")["subtasks"]
    assert [each["className"] for each in subtasks] == ["pending", "completed"]
    assert under_way["tasks"][operator_id(Uid("delays"))]["latest_ack_timestamp"] == -1


def test_a_subtask_is_reported_with_every_figure() -> None:
    eventful()

    found = read(f"{LIST}/details/1/subtasks/{JOIN}")
    slow = found["subtasks"][1]

    assert slow["checkpoint"] == {"sync": 1, "async": 5}
    assert slow["alignment"]["duration"] == 61
    assert slow["alignment"]["buffered"] == 2 * 61 * 4000
    assert (slow["start_delay"], slow["end_to_end_duration"]) == (2, 75)
    assert found["summary"]["alignment"]["duration"]["max"] == 61
    assert found["summary"]["end_to_end_duration"]["avg"] == 47


def test_no_part_is_aborted_since_subtasks_do_not_report_given_up_parts() -> None:
    """The documentation says so.

    Flink's `aborted` comes with the figures of a part that was given up; the engine reports figures
    only of acknowledged parts.
    """
    story = Story(new_run()).started().triggered().acknowledged("join", 1)
    declined = CheckpointFailureReason.CHECKPOINT_DECLINED
    story.tell(CheckpointFailed(checkpoint_id=CheckpointId(1), reason=declined, message=""))
    Projector().run_once()

    found = read(f"{LIST}/details/1/subtasks/{JOIN}")["subtasks"]

    assert [each["className"] for each in found] == ["pending", "completed"]
    assert [each.get("aborted") for each in found] == [None, False]
    told = [each for each in get_args(EngineEvent) if "phases" in each.__struct_fields__]
    assert told == [SubtaskAcknowledged]
    page = (ROOT / "docs" / "how-to" / "flink-tools.md").read_text()
    assert "`aborted` is always false" in " ".join(page.split())


def test_unaligned_subtasks_and_stopping_savepoints_have_types_of_their_own() -> None:
    run = new_run()
    asked = new_request(run, StopWithSavepoint())
    Story(run).started().completed().completed(CheckpointKind.SAVEPOINT, asked.request_id)
    Projector().run_once()
    SubtaskPhase.objects.filter(checkpoint__checkpoint_id=1, vertex="join").update(
        is_unaligned=True, persisted_bytes=70
    )

    savepoint, first = read(LIST)["history"]

    assert first["checkpoint_type"] == "UNALIGNED_CHECKPOINT"
    assert savepoint["checkpoint_type"] == "SYNC_SAVEPOINT"
    subtask = read(f"{LIST}/details/1/subtasks/{JOIN}")["subtasks"][0]
    assert (subtask["unaligned_checkpoint"], subtask["alignment"]["persisted"]) == (True, 70)


def test_deleted_subtask_figures_are_not_invented() -> None:
    eventful()
    SubtaskPhase.objects.filter(checkpoint__checkpoint_id=1).delete()

    assert "newest checkpoints only" in read(f"{LIST}/details/1", 404)["errors"][0]
    (first,) = [each for each in read(LIST)["history"] if each["id"] == 1]
    assert first["latest_ack_timestamp"] - first["trigger_timestamp"] == 80


def test_an_unknown_checkpoint_is_not_found() -> None:
    eventful()

    assert "checkpoint 999" in read(f"{LIST}/details/999", 404)["errors"][0]
    for text in ("x", "-1", "1.5", "9" * 30, "٣"):
        assert "checkpointid" in read(f"{LIST}/details/{text}", 400)["errors"][0]
    assert "vertexid" in read(f"{LIST}/details/1/subtasks/x", 400)["errors"][0]
    assert read(f"{LIST}/details/1/subtasks/{'0' * 32}", 404)


def test_the_history_has_ten_checkpoints_and_the_summary_covers_all() -> None:
    story = Story(new_run()).started()
    for _ in range(12):
        story.completed()
    Projector().run_once()
    Checkpoint.objects.filter(checkpoint_id=1).update(end_to_end_ms=1000.0)

    found = read(LIST)

    assert [each["id"] for each in found["history"]] == list(range(12, 2, -1))
    assert found["summary"]["end_to_end_duration"]["max"] == 1000


def test_the_configuration_is_that_of_the_run() -> None:
    new_run(
        settings={
            "execution.checkpointing.interval": "off",
            "execution.checkpointing.timeout": "7 s",
            "state.backend.type": "rocksdb",
            "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
        }
    )

    found = read(f"{LIST}/config")

    assert found["mode"] == "exactly_once"
    assert (found["interval"], found["timeout"]) == (2**63 - 1, 7000)
    assert found["state_backend"] == "EmbeddedRocksDBStateBackend"
    assert found["externalization"] == {"enabled": True, "delete_on_cancellation": True}


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        ("AT_LEAST_ONCE", "at_least_once"),
        ("AT_MOST_ONCE", "at_most_once"),
        ("ACKED", "at_least_once"),
    ],
)
def test_a_weaker_mode_is_never_called_exactly_once(mode: str, word: str) -> None:
    new_run(settings={"execution.checkpointing.mode": mode})

    assert read(f"{LIST}/config")["mode"] == word


def eventful() -> None:
    """Makes checkpoints: 1 discarded, 2 a savepoint, 3 expired, 4 under way, one refused early."""
    run = new_run()
    asked = new_request(run, TakeSavepoint(format=SavepointFormat.NATIVE))
    story = Story(run).started().sampled().completed()
    savepoint = "/jobs/flights/checkpoints/chk-2"
    story.completed(CheckpointKind.SAVEPOINT, asked.request_id, savepoint).slot_killed()
    story.triggered().wait(900).tell(
        CheckpointDiscarded(checkpoint_id=CheckpointId(1)),
        CheckpointFailed(
            checkpoint_id=CheckpointId(3),
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message="5 of 8 subtasks had acknowledged.",
        ),
        CheckpointFailed(
            checkpoint_id=None,
            reason=CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
            message="Not yet.",
        ),
    )
    story.next_checkpoint = CheckpointId(4)
    story.triggered().tell(
        SubtaskAcknowledged(checkpoint_id=CheckpointId(4), phases=phases("join", 1))
    )
    Projector().run_once()
    beat()
