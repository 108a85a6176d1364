"""Real drivers and slots that keep their snapshots elsewhere: an object store, or memory."""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import (
    CheckpointFailed,
    CheckpointTriggered,
    FailureOccurred,
    RecoveryPhaseReached,
    RequestEnded,
    RestorePointRefused,
    RunEnded,
    SlotConnected,
)
from pipelines.domain.ids import CheckpointId, RequestId
from pipelines.domain.status import JobStatus, RecoveryPhase, RequestOutcome
from tests.driven_run import StartedRun
from tests.object_server import CREDENTIALS, Fault, ObjectServer, never, on_path
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import TOTAL, assert_exact, committed
from tests.stopped_processes import stopped_slot

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "150"}  # 5 s; no test waits for the end
SOONER = {"execution.checkpointing.interval": "50 ms"}
MEMORY = {**SOONER, "execution.checkpointing.storage": "jobmanager"}
DIR, SAVEPOINT_DIR = "execution.checkpointing.dir", "execution.checkpointing.savepoint-dir"


@pytest.fixture
def server(objects: ObjectServer) -> Iterator[ObjectServer]:
    objects.plan(never)
    yield objects
    objects.plan(never)


def test_a_killed_slot_changes_nothing_with_checkpoints_in_an_object_store(
    tmp_path: Path, server: ObjectServer
) -> None:
    with in_objects(tmp_path, server) as (run, root):
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")
    [restored] = restored_from(run)
    assert restored is not None
    assert restored.startswith(f"{root}/{run.directory.run_id}/chk-")
    assert not (run.directory.path / "checkpoints").exists()
    said = run.directory.journal_file.read_text() + run.directory.driver_log.read_text()
    assert not any(secret in said for secret in CREDENTIALS.values())


def test_a_failing_object_store_fails_checkpoints_by_name_but_not_the_run(
    tmp_path: Path, server: ObjectServer
) -> None:
    tolerant = {**SOONER, "execution.checkpointing.tolerable-failed-checkpoints": "1000"}
    with in_objects(tmp_path, server, tolerant) as (run, _):
        run.wait_for(lambda _: len(run.completed()) >= 1, STEP_S)
        server.plan(on_path(".arrow", Fault.DENIED))
        run.wait_for(lambda _: len(run.of(CheckpointFailed)) >= 2, STEP_S)
        server.plan(never)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    failed = [e.event for e in run.of(CheckpointFailed)]
    assert ended.status is JobStatus.FINISHED
    assert all(".arrow cannot be written: " in event.message for event in failed)  # type: ignore[attr-defined]
    assert_exact(tmp_path / "output")


def test_a_new_driver_finds_the_points_of_the_dead_one_in_the_object_store(
    tmp_path: Path, server: ObjectServer
) -> None:
    """A driver that cannot read the store ends without an outcome.

    The supervisor of drivers starts the next one, as after any death, and shows its last message.
    """
    with in_objects(tmp_path, server) as (run, root):
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        newest = run.completed()[-1]
    run_id, variables = run.directory.run_id, environment(server, root)
    server.plan(lambda request: Fault.DENIED)
    with hosted_run(tmp_path, run_id=run_id, environment=variables) as early:
        early.process.wait(STEP_S)
        server.plan(never)
        said = early.directory.driver_log.read_text().strip().splitlines()[-1]
        assert not early.of(RunEnded)
    with hosted_run(tmp_path, run_id=run_id, environment=variables) as late:
        hurry(tmp_path)
        ended = late.wait_until_over(STEP_S)

    assert "cannot be listed" in said
    assert ended.status is JobStatus.FINISHED
    assert restored_from(late)[0] == newest.path
    assert_ids_grow(late)
    assert_exact(tmp_path / "output")


def test_a_recovery_waits_for_an_object_store_that_does_not_answer(
    tmp_path: Path, server: ObjectServer
) -> None:
    with in_objects(tmp_path, server) as (run, _):
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        server.plan(lambda request: Fault.DENIED)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for(lambda _: len(storage_failures(run)) >= 2, STEP_S)
        server.plan(never)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(RestorePointRefused) == []  # a point that cannot be read now is not damaged
    assert_exact(tmp_path / "output")


def test_a_recovery_waits_for_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        with silent(run.directory.path / "checkpoints"):
            os.kill(run.pid_of(1), signal.SIGKILL)
            run.wait_for(lambda _: len(storage_failures(run)) >= 2, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(RestorePointRefused) == []  # a point that cannot be read now is not damaged
    assert_exact(tmp_path / "output")


def test_a_slot_that_briefly_cannot_read_its_point_does_not_end_the_run(tmp_path: Path) -> None:
    """The driver had verified it a moment before."""
    settings = {**SOONER, "testing.faults": "stop restoring slot=1 attempt=2"}
    with hosted_run(tmp_path, PACED, settings=settings) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        slot = stopped_slot(run, 1, attempt=2, within_s=STEP_S)
        with silent(run.directory.path / "checkpoints"):
            slot.resume()
            run.wait_for(lambda _: bool(unread_by_slots(run)), STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert run.of(RestorePointRefused) == []
    assert_exact(tmp_path / "output")


def test_a_savepoint_in_an_object_store_is_restored_by_another_run(
    tmp_path: Path, server: ObjectServer
) -> None:
    root = server.new_root()
    command = StopWithSavepoint(request_id=RequestId("asked-1"), requested_by="ada", reason="test")
    settings = {**SOONER, SAVEPOINT_DIR: f"{root}/savepoints"}
    variables = environment(server, root)
    with hosted_run(tmp_path, PACED, settings=settings, environment=variables) as run:
        run.wait_for(lambda _: len(committed(tmp_path / "output")) > 0, STEP_S)
        submit(run.directory, command)
        run.wait_until_over(STEP_S)
    [answer] = [envelope.event for envelope in run.of(RequestEnded)]
    assert isinstance(answer, RequestEnded)
    assert answer.outcome is RequestOutcome.SUCCEEDED
    assert (answer.path or "").startswith(f"{root}/savepoints/savepoint-{run.directory.run_id}-")

    with hosted_run(
        tmp_path,
        {"total": str(TOTAL)},
        settings=settings,
        parallelism=3,
        restore_from=answer.path,
        spec_fields={"first_checkpoint_id": CheckpointId(run.completed()[-1].checkpoint_id + 1)},
        environment=variables,
    ) as again:
        hurry(tmp_path)
        ended = again.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_a_killed_slot_recovers_from_the_memory_of_the_coordinator(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=MEMORY) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")
    [restored] = restored_from(run)
    assert restored is not None
    assert restored.startswith(f"memory://{run.directory.run_id}/chk-")
    assert list(tmp_path.rglob("manifest.json")) == []


def test_checkpoints_in_memory_are_reported_as_lost_with_the_driver(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=MEMORY) as run:
        run.wait_for(lambda _: len(committed(tmp_path / "output")) > 0, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    with hosted_run(tmp_path, run_id=run.directory.run_id) as again:
        hurry(tmp_path)
        ended = again.wait_until_over(STEP_S)

    [lost] = [envelope.event for envelope in again.of(RestorePointRefused)]
    assert isinstance(lost, RestorePointRefused)
    assert "memory of the driver that ended" in lost.message
    assert restored_from(again)[0] is None
    assert ended.status is JobStatus.FINISHED
    assert_ids_grow(again)
    assert_exact(tmp_path / "output")


def test_state_that_is_too_large_for_memory_fails_the_checkpoint_by_name(tmp_path: Path) -> None:
    settings = {**MEMORY, "execution.checkpointing.jobmanager.max-state-size": "64 b"}
    with hosted_run(tmp_path, PACED, settings=settings) as run:
        run.wait_for(lambda _: len(run.of(CheckpointFailed)) >= 1, STEP_S)

    event = run.of(CheckpointFailed)[0].event
    assert isinstance(event, CheckpointFailed)
    assert "is larger than 64 bytes" in event.message
    assert "set execution.checkpointing.storage to filesystem" in event.message


@pytest.mark.parametrize("key", [DIR, SAVEPOINT_DIR])
@pytest.mark.parametrize("place", ["s3://elsewhere/x", "/etc", "{root}/../outside"])
def test_a_place_outside_the_roots_ends_the_run_before_it_begins(
    tmp_path: Path, key: str, place: str
) -> None:
    with hosted_run(tmp_path, settings={key: place.format(root=tmp_path)}) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert f"The setting {key} cannot be used" in ended.reason
    assert "lies outside the configured storage" in ended.reason
    assert run.of(SlotConnected) == []


@contextmanager
def in_objects(
    tmp_path: Path, server: ObjectServer, settings: dict[str, str] = SOONER
) -> Iterator[tuple[StartedRun, str]]:
    root = server.new_root()
    variables = environment(server, root)
    with hosted_run(
        tmp_path, PACED, settings={**settings, DIR: root}, environment=variables
    ) as run:
        yield run, root


@contextmanager
def silent(directory: Path) -> Iterator[None]:
    """Makes every call below it fail with ELOOP, even for root."""
    aside = directory.rename(directory.with_name("aside"))
    directory.symlink_to(directory)
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def environment(server: ObjectServer, root: str) -> dict[str, str]:
    return {**server.environment, "FTDASH_STORAGE_ROOTS": root}


def restored_from(run: StartedRun) -> list[str | None]:
    events = [envelope.event for envelope in run.of(RecoveryPhaseReached)]
    decided = [e for e in events if isinstance(e, RecoveryPhaseReached)]
    return [e.restored_path for e in decided if e.phase is RecoveryPhase.DECIDE]


def storage_failures(run: StartedRun) -> list[str]:
    events = [envelope.event for envelope in run.of(FailureOccurred)]
    causes = [event.cause for event in events if isinstance(event, FailureOccurred)]
    return [cause for cause in causes if "is unknown" in cause]


def unread_by_slots(run: StartedRun) -> list[str]:
    events = [envelope.event for envelope in run.of(FailureOccurred) if envelope.attempt == 2]
    causes = [event.cause for event in events if isinstance(event, FailureOccurred)]
    return [cause for cause in causes if os.strerror(errno.ELOOP) in cause]


def assert_ids_grow(run: StartedRun) -> None:
    events = [envelope.event for envelope in run.of(CheckpointTriggered)]
    used = [event.checkpoint_id for event in events if isinstance(event, CheckpointTriggered)]
    assert used == sorted(set(used))
