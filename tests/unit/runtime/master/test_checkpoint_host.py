"""The checkpoint host: what becomes durable when, and what waiting requests learn."""

from pathlib import Path
from typing import TypeVar

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import Retryable
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointTriggered,
    ClaimedPointDiscarded,
    Event,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RequestId
from pipelines.domain.status import CheckpointKind, JobStatus, SavepointFormat
from pipelines.protocol.retention import RetainedPoint
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import (
    Aborted,
    Completed,
    Inject,
)
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.hosted_checkpoints import INTERVAL_MS, TIMEOUT_MS, VERTICES, Master
from tests.unit.runtime.permits import permit
from tests.unit.runtime.points import manifest_of

E = TypeVar("E", bound=Event)

CONCURRENT = {"execution.checkpointing.max-concurrent-checkpoints": "3"}
SUSPENDED = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
SAVEPOINT = TriggerRequest(CheckpointKind.SAVEPOINT, RequestId("save"))
STOP = TriggerRequest(CheckpointKind.SAVEPOINT, RequestId("stop"), stops_run=True)


def test_a_manifest_is_published_only_after_all_acknowledgements(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    for vertex in VERTICES[:-1]:
        master.acknowledge(1, vertex)
    published_early = master.published
    master.acknowledge(1, VERTICES[-1])

    assert published_early == []
    assert master.published == ["chk-1"]
    assert master.completed == [1]
    assert master.attempt.of(Completed) == [Completed(permit=permit(1))]


def test_no_completion_is_announced_before_the_manifest_is_durable(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    master.acknowledge_all(1, deliver=False)

    assert (master.completed, master.attempt.of(Completed)) == ([], [])


def test_a_repeated_acknowledgement_counts_once(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    for vertex in ("left", "left", "right"):
        master.acknowledge(1, vertex)

    assert master.published == []


def test_the_listener_learns_of_a_manifest_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(tmp_path)
    there: list[list[str]] = []
    monkeypatch.setattr(
        master.listener, "checkpoint_publishing", lambda *_: there.append(master.published)
    )

    master.complete_one()

    assert there == [[]]
    assert master.published == ["chk-1"]


def test_an_undeletable_failed_checkpoint_is_swept_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(tmp_path)
    publish = FileSystemCheckpointStore.publish

    def publish_and_fail(store: FileSystemCheckpointStore, *point: object) -> None:
        publish(store, *point)  # type: ignore[arg-type]
        raise Retryable("the disk is away")

    def fail(*_: object) -> None:
        raise Retryable("the disk is away")

    with monkeypatch.context() as disk:
        disk.setattr(FileSystemCheckpointStore, "publish", publish_and_fail)
        disk.setattr(FileSystemCheckpointStore, "discard", fail)
        master.complete_one()
    left = master.published

    master.host.on_stopped(SUSPENDED, "a slot died")
    master.host.on_running(master.attempt)

    assert (master.completed, left, master.published) == ([], ["chk-1"], [])


def test_after_the_lease_is_lost_nothing_is_published_or_announced(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.complete_one()
    master.trigger()

    master.owns_run = False
    master.acknowledge_all(2)

    assert master.completed == [1]
    assert len(master.attempt.of(Completed)) == 1
    assert master.published == ["chk-1"]
    assert [event.message for event in master.failed] == ["this driver no longer owns the run"]


def test_after_the_lease_is_lost_no_directory_is_made_and_no_barrier_starts(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.complete_one()
    before = set(tmp_path.rglob("*"))

    master.owns_run = False
    master.trigger()

    assert set(tmp_path.rglob("*")) == before
    assert len(master.attempt.of(Inject)) == 1
    assert [event.message for event in master.failed] == ["this driver no longer owns the run"]


def test_a_checkpoint_that_another_driver_published_fails_here_and_stays(tmp_path: Path) -> None:
    other = Master(tmp_path)
    other.complete_one()
    master = Master(tmp_path)
    master.clock.now_ms += 1

    master.complete_one()

    (event,) = master.failed
    assert event.message == "another driver has published this checkpoint"
    assert master.completed == []
    assert master.published == ["chk-1"]


def test_a_driver_that_lost_the_lease_deletes_nothing_of_its_successor(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()
    master.owns_run = False
    successor = Master(tmp_path)
    successor.complete_one()

    master.decline(1)

    assert [event.checkpoint_id for event in master.failed] == [1]
    assert successor.published == ["chk-1"]


def test_a_fenced_attempt_commits_nothing(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    master.fence.on_attempt(Attempt(2))
    master.acknowledge_all(1)

    assert master.attempt.of(Completed) == []
    assert len(master.of(ZombieRefused)) == 1


def test_retention_deletes_replaced_points_but_no_savepoint(tmp_path: Path) -> None:
    master = Master(tmp_path, {"execution.checkpointing.num-retained": "2"})
    master.host.triggers.on_request(SAVEPOINT)

    for _ in range(4):
        master.complete_one()

    assert master.published == ["chk-3", "chk-4", "savepoint-run-1-1"]
    assert [event.checkpoint_id for event in master.of(CheckpointDiscarded)] == [2]


def test_a_checkpoint_that_expires_answers_its_request_and_leaves_nothing(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.host.triggers.on_request(SAVEPOINT)
    expires_ms = master.trigger()
    left_behind = Path(master.attempt.of(Inject)[0].location)
    assert left_behind.exists()
    master.acknowledge(1, "left")

    master.clock.now_ms += TIMEOUT_MS - 1
    master.host.on_time()
    failed_early = list(master.failed)
    master.clock.now_ms += 1
    master.host.on_time()

    (event,) = master.failed
    assert (expires_ms, failed_early) == (master.clock.now_ms, [])
    assert event.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    assert event.request_id == "save"
    assert event.message == "still missing: both[0], right[0]"
    assert [request for request, _ in master.listener.aborted] == [SAVEPOINT]
    assert master.attempt.of(Aborted) == [Aborted(checkpoint_id=CheckpointId(1))]
    assert not left_behind.exists()


def test_a_late_acknowledgement_does_not_revive_an_expired_checkpoint(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()
    master.clock.now_ms += TIMEOUT_MS
    master.host.on_time()

    master.acknowledge_all(1)

    assert (master.completed, master.published) == ([], [])


def test_a_declined_checkpoint_fails_with_the_name_of_the_subtask(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    master.decline(1)

    (event,) = master.failed
    assert event.message == "both[0]: the disk is full"
    (message,) = master.too_many
    assert message.startswith("More checkpoints failed in a row than the run tolerates.")
    assert message.endswith("both[0]: the disk is full")


def test_an_id_is_never_used_again_after_its_checkpoint_failed(tmp_path: Path) -> None:
    master = Master(tmp_path, {"execution.checkpointing.tolerable-failed-checkpoints": "5"})
    master.trigger()
    master.decline(1)

    master.complete_one()

    assert [event.checkpoint_id for event in master.of(CheckpointTriggered)] == [1, 2]
    assert master.completed == [2]


def test_after_a_stop_has_completed_no_further_checkpoint_starts(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.host.triggers.on_request(STOP)
    master.complete_one()

    master.host.triggers.on_request(SAVEPOINT)
    master.clock.now_ms += 10 * INTERVAL_MS
    next_ms = master.host.on_time()

    (inject,) = master.attempt.of(Inject)
    assert (inject.is_final, inject.savepoint_format) == (True, SavepointFormat.CANONICAL)
    assert next_ms is None
    assert [request for request, _ in master.listener.completed] == [STOP]


def test_a_failed_stop_lets_the_run_continue(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.host.triggers.on_request(STOP)
    master.trigger()
    master.decline(1)

    master.complete_one()

    assert master.completed == [2]
    assert [inject.is_final for inject in master.attempt.of(Inject)] == [True, False]


def test_a_manifest_written_while_the_attempt_died_counts_as_a_point(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()
    master.acknowledge_all(1, deliver=False)

    master.host.on_stopped(SUSPENDED, "slot 1 was killed")
    master.deliver()

    assert master.completed == [1]
    assert master.failed == []
    assert [p.checkpoint_id for p in master.host.points.newest_first()] == [1]


def test_a_checkpoint_that_dies_with_its_attempt_answers_its_request(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.host.triggers.on_request(SAVEPOINT)
    master.trigger()

    master.host.on_stopped(SUSPENDED, "slot 1 was killed")

    assert [request for request, _ in master.listener.aborted] == [SAVEPOINT]
    assert master.host.on_time() is None


def test_output_counts_as_committed_once_every_sink_has_confirmed(tmp_path: Path) -> None:
    master = Master(tmp_path, parallelism=2)
    master.complete_one()

    master.commit(1, subtask=0)
    master.commit(1, subtask=0)
    committed_early = master.of(CheckpointCommitted)
    master.commit(1, subtask=1)

    assert committed_early == []
    assert [event.checkpoint_id for event in master.of(CheckpointCommitted)] == [1]


def test_a_completed_checkpoint_sums_up_its_subtasks(tmp_path: Path) -> None:
    master = Master(tmp_path, parallelism=2)
    master.trigger()
    master.clock.now_ms += 30

    master.acknowledge_all(1)

    (event,) = master.of(CheckpointCompleted)
    assert event.end_to_end_ms == 30
    assert event.source_records == 6 * 10
    assert event.watermark_ms == 100
    assert event.counters == {"both.read": 6}


@pytest.mark.parametrize("passed_ms", [0, INTERVAL_MS - 1])
def test_no_periodic_checkpoint_starts_before_its_time(passed_ms: int, tmp_path: Path) -> None:
    master = Master(tmp_path)
    due_ms = master.clock.now_ms + INTERVAL_MS

    master.clock.now_ms += passed_ms

    assert master.host.on_time() == due_ms
    assert master.attempt.messages == []


@pytest.mark.parametrize(("pause_ms", "due_ms"), [(0, 0), (400, 400), (9_000, INTERVAL_MS)])
def test_the_first_periodic_checkpoint_comes_after_the_pause_and_within_the_interval(
    pause_ms: int, due_ms: int, tmp_path: Path
) -> None:
    """The moment is random; this test draws the earliest one."""
    pause = {"execution.checkpointing.min-pause": f"{pause_ms} ms"}

    master = Master(tmp_path, pause, draw=lambda low, _: low)
    began_ms = master.clock.now_ms
    master.clock.now_ms += max(due_ms - 1, 0)
    too_early = master.host.on_time() if due_ms else due_ms + began_ms
    master.clock.now_ms = began_ms + due_ms
    master.host.on_time()

    assert too_early == began_ms + due_ms
    assert [order.checkpoint_id for order in master.attempt.of(Inject)] == [1]


def test_as_many_checkpoints_are_under_way_as_there_are_places(tmp_path: Path) -> None:
    master = Master(tmp_path, CONCURRENT)
    for _ in range(5):
        master.trigger()

    started = [inject.checkpoint_id for inject in master.attempt.of(Inject)]
    master.acknowledge_all(2)

    assert started == [1, 2, 3]
    assert master.completed == [2]
    assert [(e.checkpoint_id, e.reason) for e in master.failed] == [
        (1, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    ]
    assert [abort.checkpoint_id for abort in master.attempt.of(Aborted)] == [1]


def test_every_checkpoint_under_way_has_its_own_timeout(tmp_path: Path) -> None:
    master = Master(
        tmp_path, {**CONCURRENT, "execution.checkpointing.tolerable-failed-checkpoints": "9"}
    )
    master.trigger()
    master.trigger()

    master.clock.now_ms += TIMEOUT_MS - INTERVAL_MS
    master.host.on_time()

    assert [event.checkpoint_id for event in master.failed] == [1]
    assert [i.checkpoint_id for i in master.attempt.of(Inject)] == [1, 2, 3, 4]


def test_a_savepoint_overtaken_by_a_checkpoint_still_completes(tmp_path: Path) -> None:
    master = Master(tmp_path, CONCURRENT)
    master.host.triggers.on_request(SAVEPOINT)
    master.trigger()
    master.trigger()

    master.acknowledge_all(2)
    master.acknowledge_all(1)

    assert master.completed == [2, 1]
    assert [p.checkpoint_id for p in master.host.points.newest_first()] == [2, 1]


@pytest.mark.parametrize("spoiled", ["", "the disk", "the lease"])
def test_a_claimed_point_is_reported_as_discarded_only_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    claimed = RetainedPoint(CheckpointId(99), f"{tmp_path}/other/chk-99", is_claimed=True)
    master = Master(tmp_path, {"execution.checkpointing.num-retained": "1"})
    master.store.publish(claimed.location, manifest_of([]))
    master.host.points.on_completed(claimed)

    def fail(*_: object) -> None:
        raise Retryable("the disk is away")

    publish = FileSystemCheckpointStore.publish

    def publish_and_lose(store: FileSystemCheckpointStore, *point: object) -> object:
        master.owns_run = False
        return publish(store, *point)  # type: ignore[arg-type]

    if spoiled == "the disk":
        monkeypatch.setattr(FileSystemCheckpointStore, "discard", fail)
    if spoiled == "the lease":
        monkeypatch.setattr(FileSystemCheckpointStore, "publish", publish_and_lose)
    master.complete_one()

    told = [event.path for event in master.of(ClaimedPointDiscarded)]
    assert master.completed == [1]
    assert told == ([] if spoiled else [claimed.location])
    assert master.store.published(f"{tmp_path}/other") == ([claimed.location] if spoiled else [])


def test_files_that_a_subtask_writes_after_the_abort_are_swept(tmp_path: Path) -> None:
    master = Master(tmp_path, {"execution.checkpointing.tolerable-failed-checkpoints": "5"})
    master.trigger()
    location = Path(master.attempt.of(Inject)[0].location)
    master.decline(1)
    location.mkdir(parents=True, exist_ok=True)
    (location / "late.arrow").write_bytes(b"state")

    master.acknowledge(1, "left")

    assert not location.exists()


def test_a_new_attempt_sweeps_unfinished_checkpoints_of_its_predecessors(tmp_path: Path) -> None:
    first = Master(tmp_path)
    first.complete_one()
    first.trigger()
    unfinished = Path(first.attempt.of(Inject)[1].location)
    unfinished.mkdir(parents=True, exist_ok=True)
    foreign = unfinished.with_name("chk-2.tmp")
    foreign.mkdir()

    second = Master(tmp_path, first_id=3)

    assert not unfinished.exists()
    assert foreign.exists()
    assert second.published == ["chk-1"]


@pytest.mark.parametrize(
    ("settings", "started"),
    [
        ({}, [1, 2]),
        ({"execution.checkpointing.unaligned.enabled": "true"}, [1]),
        (
            {
                "execution.checkpointing.alignment-buffer.when-exceeded": "unaligned",
                "execution.checkpointing.alignment-buffer.max-size-per-channel": "1 mb",
            },
            [1],
        ),
    ],
)
def test_a_savepoint_waits_for_a_place_only_if_barriers_may_overtake(
    tmp_path: Path, settings: dict[str, str], started: list[int]
) -> None:
    master = Master(tmp_path, settings)
    master.trigger()

    master.host.triggers.on_request(SAVEPOINT)
    master.host.on_time()

    assert [inject.checkpoint_id for inject in master.attempt.of(Inject)] == started


@pytest.mark.parametrize("status", [status for status in JobStatus if status.is_terminal])
def test_checkpoints_in_memory_are_discarded_however_their_run_ends(
    tmp_path: Path, status: JobStatus
) -> None:
    master = Master(tmp_path, {"execution.checkpointing.storage": "jobmanager"})
    master.complete_one()

    master.host.on_run_ended(status)

    assert [event.checkpoint_id for event in master.of(CheckpointDiscarded)] == [1]


def test_the_end_of_a_run_leaves_no_unfinished_checkpoint_behind(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.complete_one()
    master.trigger()
    location = Path(master.attempt.of(Inject)[1].location)
    master.host.on_stopped(SUSPENDED, "somebody cancelled the run")
    location.mkdir(parents=True)  # a slot that is slow to end writes once more

    master.host.on_run_ended(JobStatus.FAILED)

    assert not location.exists()
    assert master.published == ["chk-1"]


def test_a_request_beyond_the_bound_is_refused_and_shown(tmp_path: Path) -> None:
    master = Master(tmp_path)

    answers = [master.host.triggers.on_request(SAVEPOINT) for _ in range(1_001)]

    (event,) = master.failed
    assert answers.count(False) == 1
    assert event.reason is CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    assert (event.checkpoint_id, event.request_id) == (None, "save")


def test_two_manifests_at_the_end_of_an_attempt_are_both_waited_for(tmp_path: Path) -> None:
    master = Master(tmp_path, CONCURRENT)
    master.trigger()
    master.trigger()
    master.acknowledge_all(1, deliver=False)
    master.acknowledge_all(2, deliver=False)

    master.host.on_stopped(SUSPENDED, "slot 1 was killed")
    master.deliver()

    assert master.completed == [1, 2]
    assert master.failed == []
