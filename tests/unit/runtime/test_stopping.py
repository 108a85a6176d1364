"""A run that stops with a savepoint, and failures before and after the savepoint is complete.

A script plays the slots.
"""

from pathlib import Path

import msgspec
import pytest

from pipelines.connectors.split_progress import SeenSplit, SplitPositions
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    StopWithSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Retryable
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    RequestEnded,
    RestorePointRefused,
    RunEnded,
    RunStopping,
)
from pipelines.domain.faults import Fault, FaultAction, FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, Uid
from pipelines.domain.status import CheckpointKind, JobStatus, RequestOutcome, StopStage
from pipelines.runtime.control import Begin, Declined, Deploy, SourcesEnded
from pipelines.runtime.faults import Faults
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST
from tests.unit.runtime.fakes import ListSource
from tests.unit.runtime.scripted_slots import ScriptedRun, commit_failed

WHO = {"request_id": RequestId("stop"), "requested_by": "ann", "reason": "upgrade"}
TOLERANT = {"execution.checkpointing.tolerable-failed-checkpoints": "3"}
OFF = {"execution.checkpointing.interval": "off"}
SOON = {"execution.checkpointing.interval": "20 ms"}
RETAINED = "execution.checkpointing.num-retained"
NO_RESTART = {"restart-strategy.type": "none"}


def test_after_a_failed_savepoint_the_run_continues_and_checkpoints_resume(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, {**SOON, **TOLERANT})
    run.wait_for_checkpoints(1)
    run.slots.holds_final = True
    run.ask(StopWithSavepoint(**WHO))
    run.wait_for(lambda: bool(run.slots.final_ids))
    savepoint = run.slots.final_ids[0]

    run.slots.holds_final = False
    run.slots.say(Attempt(1), declined(savepoint))
    after = len(run.of(CheckpointCompleted)) + 2
    run.wait_for_checkpoints(after)

    (answer,) = run.of(RequestEnded)
    assert answer.outcome is RequestOutcome.FAILED
    assert "the disk is full" in answer.message
    assert run.slots.attempts == [1]
    assert run.of(RunStopping) == []
    stop(run)


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (StopWithSavepoint(**WHO), JobStatus.FINISHED),
        (CancelWithSavepoint(**WHO), JobStatus.CANCELED),
    ],
)
def test_a_failed_commit_is_retried_without_reading_more_records(
    tmp_path: Path, command: StopWithSavepoint | CancelWithSavepoint, ends: JobStatus
) -> None:
    run = ScriptedRun(tmp_path, OFF)
    run.slots.commits_fail = 1
    run.ask(command)

    assert run.wait_until_over() is ends
    (point,) = run.of(CheckpointCompleted)
    told = drained(run)
    assert run.slots.attempts == [1, 2]
    assert [m.restore_location for m in told if isinstance(m, Deploy)] == [None, point.path]
    assert len([m for m in told if isinstance(m, Begin)]) == 1, "the second attempt reads nothing"
    (answer,) = run.of(RequestEnded)
    assert (answer.outcome, answer.path) == (RequestOutcome.SUCCEEDED, point.path)


def test_a_run_that_cannot_commit_says_that_its_savepoint_is_consistent(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, {**OFF, **NO_RESTART})
    run.slots.commits_fail = 1
    run.ask(StopWithSavepoint(**WHO))

    assert run.wait_until_over() is JobStatus.FAILED
    (point,) = run.of(CheckpointCompleted)
    (answer,), (ended,) = run.of(RequestEnded), run.of(RunEnded)
    assert f"The point {point.path} is consistent" in ended.reason
    assert "a run that is restored from it commits it, once" in ended.reason
    assert (answer.outcome, answer.path) == (RequestOutcome.FAILED, point.path)
    assert answer.message == ended.reason
    assert (Path(point.path) / MANIFEST).exists()


def test_a_run_that_lost_savepoint_output_does_not_promise_a_later_commit(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, OFF)
    run.slots.commits_fail, run.slots.loses_output = 1, True
    run.ask(StopWithSavepoint(**WHO))

    assert run.wait_until_over() is JobStatus.FAILED
    (point,) = run.of(CheckpointCompleted)
    (answer,), (ended,) = run.of(RequestEnded), run.of(RunEnded)
    assert ended.reason.endswith(
        f"takes no commit. The point {point.path} counts on that output: while it is lost, a run"
        " that is restored from it ends in the same way."
    )
    assert (answer.outcome, answer.message) == (RequestOutcome.FAILED, ended.reason)


def test_points_that_depend_on_lost_output_are_refused_but_older_ones_are_not(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {**SOON, RETAINED: "100"})
    run.wait_for_checkpoints(3)

    lost = run.of(CheckpointCompleted)[1]
    run.slots.say(Attempt(1), commit_failed(lost.checkpoint_id))

    assert run.wait_until_over() is JobStatus.FAILED
    _, *counting = run.of(CheckpointCompleted)
    refused = run.of(RestorePointRefused)
    assert {each.path for each in refused} == {point.path for point in counting}
    assert len(refused) == len(counting) >= 2
    (message,) = {each.message for each in refused}
    assert message == "A run that starts from it fails: the target takes no commit"


def test_a_run_never_skips_its_stopping_savepoint_for_an_older_point(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(1)
    run.slots.commits_fail = 1
    run.slots.on_commit_failure = lambda: damage(run.of(CheckpointCompleted)[-1].path)
    run.ask(StopWithSavepoint(**WHO))

    assert run.wait_until_over() is JobStatus.FAILED
    assert run.slots.attempts == [1]
    assert "does not go back to an older point" in run.of(RunEnded)[0].reason


def test_a_driver_that_takes_over_after_the_savepoint_ends_the_run_with_it(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, OFF)
    run.slots.commits = False
    run.ask(StopWithSavepoint(**WHO))
    run.wait_for(lambda: is_published(run))
    run.die()

    successor = ScriptedRun(tmp_path, OFF)

    assert successor.wait_until_over() is JobStatus.FINISHED
    (point,) = successor.of(CheckpointCompleted)
    (answer,) = successor.of(RequestEnded)
    assert point.kind is CheckpointKind.SAVEPOINT
    assert (answer.outcome, answer.path) == (RequestOutcome.SUCCEEDED, point.path)
    assert successor.of(RunEnded)[0].reason == f"Stopped with the savepoint {point.path}."
    assert successor.of(CheckpointFailed) == []


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (StopWithSavepoint(**WHO), JobStatus.FINISHED),
        (StopWithSavepoint(**WHO, drain=True), JobStatus.FINISHED),
        (CancelWithSavepoint(**WHO), JobStatus.CANCELED),
    ],
)
def test_a_savepoint_unknown_to_its_driver_ends_the_run_without_more_reading(
    tmp_path: Path, command: StopWithSavepoint | CancelWithSavepoint, ends: JobStatus
) -> None:
    run = ScriptedRun(tmp_path, OFF, faults=hit(FaultPoint.PUBLISHED))
    run.ask(command)
    run.wait_for(lambda: bool(savepoints_in(tmp_path)))
    run.die()

    successor = ScriptedRun(tmp_path, OFF)

    assert successor.wait_until_over() is ends
    (point,) = savepoints_in(tmp_path)
    (answer,) = successor.of(RequestEnded)
    assert not any(isinstance(message, Begin) for message in drained(successor))
    assert (answer.outcome, answer.path) == (RequestOutcome.SUCCEEDED, str(point))


def test_the_next_driver_repeats_a_stop_whose_savepoint_has_no_manifest(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, OFF, faults=hit(FaultPoint.ACKNOWLEDGED))
    run.ask(StopWithSavepoint(**WHO))
    run.wait_for(lambda: bool(run.of(RunStopping)))
    run.die()

    successor = ScriptedRun(tmp_path, OFF)

    assert successor.wait_until_over() is JobStatus.FINISHED
    (point,) = successor.of(CheckpointCompleted)
    (answer,) = successor.of(RequestEnded)
    assert (answer.outcome, answer.path) == (RequestOutcome.SUCCEEDED, point.path)


def test_a_failed_savepoint_left_in_storage_neither_ends_nor_starts_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ScriptedRun(tmp_path, {**OFF, **TOLERANT})
    with monkeypatch.context() as disk:
        discarded = leave_points(disk)
        run.ask(StopWithSavepoint(**WHO))
        run.wait_for(lambda: bool(run.of(RequestEnded)) and bool(discarded))
        run.die()
    (left,) = savepoints_in(tmp_path)

    successor = ScriptedRun(tmp_path, OFF)
    stop(successor)

    assert [event.stage for event in run.of(RunStopping)][:2] == [
        StopStage.PUBLISHING,
        StopStage.GIVEN_UP,
    ]
    failed, again = successor.of(RequestEnded)
    assert (failed.outcome, again.outcome) == (RequestOutcome.FAILED, RequestOutcome.SUCCEEDED)
    assert again.path != str(left)
    assert {m.restore_location for m in drained(successor) if isinstance(m, Deploy)} == {None}


def test_a_run_that_only_has_to_commit_does_not_need_its_sources(tmp_path: Path) -> None:
    source = ListSource([[(1, 1)]])
    run = ScriptedRun(tmp_path, OFF, source=source)
    at_the_end = SplitPositions((), 1, 1, (SeenSplit(0, "split-0"),))
    run.slots.positions = msgspec.to_builtins(at_the_end)
    run.slots.commits_fail = 1
    run.slots.on_commit_failure = source.splits.clear
    run.ask(StopWithSavepoint(**WHO))

    assert run.wait_until_over() is JobStatus.FINISHED
    assert run.slots.attempts == [1, 2]


def test_a_run_with_an_unusable_final_checkpoint_needs_its_sources_again(tmp_path: Path) -> None:
    source = ListSource([[(1, 1)]])
    run = ScriptedRun(tmp_path, {**OFF, RETAINED: "2"}, source=source)
    at_the_end = SplitPositions((), 1, 1, (SeenSplit(0, "split-0"),))
    run.slots.positions = msgspec.to_builtins(at_the_end)
    run.ask(TriggerCheckpoint(**WHO))
    run.wait_for_checkpoints(1)

    def lose_the_final_checkpoint() -> None:
        source.splits.clear()
        damage(run.of(CheckpointCompleted)[-1].path)

    run.slots.commits_fail = 1
    run.slots.on_commit_failure = lose_the_final_checkpoint
    for vertex in ("left", "right"):
        run.slots.say(Attempt(1), SourcesEnded(vertex=Uid(vertex), subtask=0))

    assert run.wait_until_over() is JobStatus.FAILED
    assert [point.kind for point in run.of(CheckpointCompleted)] == [
        CheckpointKind.CHECKPOINT,
        CheckpointKind.FINAL,
    ]
    assert run.slots.attempts == [1]
    assert "No recovery point of this run can be used" in run.of(RunEnded)[0].reason


@pytest.mark.parametrize("command", [StopWithSavepoint(**WHO), CancelWithSavepoint(**WHO)])
def test_a_stop_that_is_cancelled_before_its_commit_is_answered_as_failed(
    tmp_path: Path, command: StopWithSavepoint | CancelWithSavepoint
) -> None:
    run = ScriptedRun(tmp_path, OFF)
    run.slots.commits = False
    run.ask(command)
    run.wait_for(lambda: is_published(run))
    run.ask(Cancel(request_id=RequestId("cancel"), requested_by="bob", reason="now"))

    assert run.wait_until_over() is JobStatus.CANCELED
    (point,), answers = run.of(CheckpointCompleted), {a.request_id: a for a in run.of(RequestEnded)}
    stopped, cancelled = answers[RequestId("stop")], answers[RequestId("cancel")]
    assert (stopped.outcome, stopped.path) == (RequestOutcome.FAILED, point.path)
    assert "may not be committed" in stopped.message
    assert cancelled.outcome is RequestOutcome.SUCCEEDED


def hit(point: FaultPoint) -> Faults:
    """Stops the thread that writes the manifest at this point; the driver hears nothing."""
    return Faults([Fault(action=FaultAction.FAIL, point=point)])


def is_published(run: ScriptedRun) -> bool:
    return any(event.stage is StopStage.PUBLISHED for event in run.of(RunStopping))


def savepoints_in(root: Path) -> list[Path]:
    return [each.parent for each in root.rglob(f"savepoint-*/{MANIFEST}")]


def leave_points(disk: pytest.MonkeyPatch) -> list[str]:
    """From now on the store reports failure when it publishes, and does not delete.

    Returns a list that collects what it should have deleted.
    """
    publish, discarded = FileSystemCheckpointStore.publish, list[str]()

    def publish_and_fail(store: FileSystemCheckpointStore, *point: object) -> None:
        publish(store, *point)  # type: ignore[arg-type]
        raise Retryable("the disk is away")

    def do_not_discard(store: FileSystemCheckpointStore, location: str) -> None:
        discarded.append(location)
        raise Retryable("the disk is away")

    disk.setattr(FileSystemCheckpointStore, "publish", publish_and_fail)
    disk.setattr(FileSystemCheckpointStore, "discard", do_not_discard)
    return discarded


def declined(checkpoint_id: CheckpointId) -> Declined:
    return Declined(
        checkpoint_id=checkpoint_id,
        vertex=Uid("both"),
        subtask=0,
        reason=CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        message="the disk is full",
    )


def drained(run: ScriptedRun) -> list[object]:
    return [run.slots.told.get_nowait() for _ in range(run.slots.told.qsize())]


def damage(path: str) -> None:
    (Path(path) / MANIFEST).write_bytes(b"damaged")


def stop(run: ScriptedRun) -> None:
    run.ask(StopWithSavepoint(request_id=RequestId("again"), requested_by="ann", reason="enough"))
    assert run.wait_until_over() is JobStatus.FINISHED
