"""No attempt rolls its output back before every given-up checkpoint is deleted.

Such a checkpoint failed although its manifest exists, and its driver could not delete it. A script
plays the slots.
"""

from pathlib import Path

import pytest

from pipelines.domain.commands import DriverCommand, StopWithSavepoint, TriggerCheckpoint
from pipelines.domain.errors import Retryable
from pipelines.domain.events import (
    CheckpointFailed,
    FailureOccurred,
    RecoveryPhaseReached,
)
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.status import RecoveryPhase
from pipelines.runtime.control import Deploy
from pipelines.runtime.master.start.starting_point import StartingPointChooser
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST
from tests.unit.runtime.scripted_slots import ScriptedRun, ScriptedSlots, commit_failed

REQUESTED = {"request_id": RequestId("point"), "requested_by": "ann", "reason": "upgrade"}
CHECKPOINT = TriggerCheckpoint(**REQUESTED)
STOP = StopWithSavepoint(**REQUESTED)
DRAIN = StopWithSavepoint(**REQUESTED, drain=True)
SETTINGS = {
    "execution.checkpointing.interval": "off",
    "execution.checkpointing.tolerable-failed-checkpoints": "3",
    "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    "restart-strategy.exponential-delay.max-backoff": "1 ms",
}


class Storage:
    """Publishes but reports failure while `is_silent`; refuses the next `keeps` deletions."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.is_silent = False
        self.keeps = 0  # how many deletions will fail
        self.kept: list[str] = []
        self.there_at_rewind: list[set[str]] = []  # the points at each rollback of output
        publish, discard = FileSystemCheckpointStore.publish, FileSystemCheckpointStore.discard
        rewind = StartingPointChooser.rewind_sinks

        def published(store: FileSystemCheckpointStore, *point: object) -> object:
            outcome = publish(store, *point)  # type: ignore[arg-type]
            if self.is_silent:
                raise Retryable("the disk is away")
            return outcome

        def discarded(store: FileSystemCheckpointStore, location: str) -> None:
            if self.keeps:
                self.keeps -= 1
                self.kept.append(location)
                raise Retryable("the disk is away")
            discard(store, location)

        def rewound(chooser: StartingPointChooser, *start: object) -> None:
            self.there_at_rewind.append(self.points())
            rewind(chooser, *start)  # type: ignore[arg-type]

        patch.setattr(FileSystemCheckpointStore, "publish", published)
        patch.setattr(FileSystemCheckpointStore, "discard", discarded)
        patch.setattr(StartingPointChooser, "rewind_sinks", rewound)

    def points(self) -> set[str]:
        return {str(each.parent) for each in self.root.rglob(MANIFEST)}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", [CHECKPOINT, STOP, DRAIN])
@pytest.mark.parametrize("dies", [False, True], ids=["attempt", "driver"])
def test_a_given_up_point_is_deleted_before_output_is_rolled_back(
    tmp_path: Path, storage: Storage, command: DriverCommand, *, dies: bool
) -> None:
    run = with_a_point_given_up(tmp_path, storage, command)
    (given_up,) = storage.points()
    storage.is_silent, storage.keeps, storage.there_at_rewind = False, 3, []

    if dies:
        run.die()
        run = ScriptedRun(tmp_path, SETTINGS)
    else:
        run.slots.say(Attempt(1), commit_failed(None))
    run.wait_for(lambda: recoveries(run) == 1)

    assert storage.there_at_rewind == [set()]
    assert set(storage.kept) == {given_up}
    causes = [event.cause for event in run.of(FailureOccurred)]
    assert any("was given up and cannot be deleted (the disk is away)" in each for each in causes)
    assert deployed_from(run) == {None}
    run.die()


def test_a_later_driver_deletes_a_given_up_point_and_restores_the_previous(
    tmp_path: Path, storage: Storage
) -> None:
    run = ScriptedRun(tmp_path, SETTINGS)
    run.ask(TriggerCheckpoint(**{**REQUESTED, "request_id": RequestId("first")}))
    (first,) = run.wait_for_checkpoints(1)
    run.die()

    run = with_a_point_given_up(tmp_path, storage, CHECKPOINT)
    run.die()
    storage.is_silent, storage.keeps, storage.there_at_rewind = False, 0, []
    successor = ScriptedRun(tmp_path, SETTINGS)
    successor.wait_for(lambda: recoveries(successor) == 2)

    assert storage.there_at_rewind == [{first.path}]
    assert deployed_from(successor) == {first.path}
    successor.die()


def test_a_given_up_point_is_deleted_once_the_storage_answers_again(
    tmp_path: Path, storage: Storage
) -> None:
    run = with_a_point_given_up(tmp_path, storage, CHECKPOINT)
    storage.is_silent, storage.keeps = False, 0

    run.ask(TriggerCheckpoint(**{**REQUESTED, "request_id": RequestId("next")}))
    (completed,) = run.wait_for_checkpoints(1)
    run.wait_for(lambda: storage.points() == {completed.path})

    assert run.slots.attempts == [1]
    run.die()


def with_a_point_given_up(tmp_path: Path, storage: Storage, command: DriverCommand) -> ScriptedRun:
    """Returns a run whose newest point is complete in the storage but was reported as failed."""
    before = len(storage.points())
    run = ScriptedRun(tmp_path, SETTINGS, slots=ScriptedSlots())
    storage.is_silent, storage.keeps = True, 1_000
    run.ask(command)
    run.wait_for(lambda: bool(run.of(CheckpointFailed)) and bool(storage.kept))
    assert len(storage.points()) == before + 1
    storage.kept = []
    return run


def recoveries(run: ScriptedRun) -> int:
    """Returns how many attempts, over all drivers, restored after the attempt before."""
    phases = [event.phase for event in run.of(RecoveryPhaseReached)]
    return phases.count(RecoveryPhase.RESTORE)


def deployed_from(run: ScriptedRun) -> set[str | None]:
    """Returns the starting points of all attempts of this driver."""
    messages = [run.slots.told.get_nowait() for _ in range(run.slots.told.qsize())]
    return {each.restore_location for each in messages if isinstance(each, Deploy)}
