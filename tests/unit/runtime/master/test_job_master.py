"""The job master from command to journal; a script plays the slots."""

import re
import shutil
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipelines.connectors.contract import Superseded
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import (
    Cancel,
    ChangeSettings,
    RetryNow,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import LAST_EVENTS_MAX, InvariantViolated, Retryable
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointTriggered,
    FailureOccurred,
    JobStatusChanged,
    MetricsSampled,
    PointsVerified,
    RecoveryPhaseReached,
    RequestEnded,
    RestartScheduled,
    RestorePointRefused,
    RestoreProgress,
    RunEnded,
    RunStarted,
    SettingsChanged,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.settings import AS_SENT, AckingOptions, InputOptions
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import CheckpointKind, JobStatus, RecoveryPhase, RequestOutcome
from pipelines.protocol.repeated_failures import OperatorError
from pipelines.runtime.control import (
    Beat,
    Deploy,
    Deployed,
    Failed,
    PeerLost,
    ReservationWanted,
    Restoring,
    Sampled,
    SourcesEnded,
    StrangerTurnedAway,
)
from pipelines.runtime.master.job_events import (
    SlotSpoke,
    StageEnded,
    StrangerRefused,
    TooManyFailedCheckpoints,
    WorkFailed,
)
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST
from pipelines.storage.store import Publication
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.hosted import MemorySink
from tests.unit.runtime.points import places_in
from tests.unit.runtime.scripted_slots import ScriptedRun, ScriptedSlots, acknowledgement

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
WHO = {"requested_by": "ann", "reason": "try"}
FIXED_DELAY = "restart-strategy.fixed-delay."
SOON = {"execution.checkpointing.interval": "20 ms"}


def test_claims_of_an_older_attempt_are_refused_and_shown(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(1)
    run.slots.acknowledges = False
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])

    run.slots.say(Attempt(1), Sampled(subtasks=[], source_records=9, resident_bytes=1, counters={}))
    run.slots.say(Attempt(1), acknowledgement(CheckpointId(7), "left"))
    run.wait_for(lambda: bool(run.of(ZombieRefused)))

    (refused,) = run.of(ZombieRefused)
    assert refused.zombie_attempt == 1
    assert refused.what == "an acknowledgement of checkpoint 7 by left[0]"
    cancel(run)


def test_a_stranger_counts_as_a_zombie_only_of_an_attempt_that_is_over(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(1)
    run.slots.acknowledges = False
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])

    for attempt in (0, 1, 2, 99):
        run.slots.post(StrangerRefused(Attempt(attempt), f"at the driver, {attempt}"))
        turned_away = StrangerTurnedAway(attempt=Attempt(attempt), what=f"at a slot, {attempt}")
        run.slots.say(Attempt(2), turned_away)
    run.wait_for(lambda: len(run.of(ZombieRefused)) == 8)

    assert [event.zombie_attempt for event in run.of(ZombieRefused)] == [0, 0, 1, 1, 0, 0, 0, 0]
    assert run.of(ZombieRefused)[-1].what == "at a slot, 99"
    cancel(run)


def test_the_next_attempt_handles_batches_that_failed_together_one_by_one(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {**SOON, "pipeline.coalescing.max-wait": "7 ms"})
    run.wait_for_checkpoints(1)
    candidates = tuple(origin_in(split) for split in ("a", "b", "c", "d"))
    error = OperatorError(
        operator=Uid("both"),
        error_type="ValueError",
        message="7 is bad",
        origin=None,
        is_of_the_world=False,
        candidates=candidates,
    )

    run.slots.say(Attempt(1), msgspec.structs.replace(failure("7 is bad"), error=error))
    run.wait_for(lambda: run.slots.attempts == [1, 2])
    cancel(run)

    orders = [told for told in iter_told(run) if isinstance(told, Deploy)]
    assert [order.isolation.apart for order in orders] == [[], list(candidates)]
    assert orders[1].inputs == InputOptions(
        coalesced_rows=8_192, coalescing_wait_ms=7, debloat_target_ms=100
    )
    (told,) = [e for e in run.of(FailureOccurred) if e.operator]
    assert told.origin is None
    assert told.cause == (
        "both[0] failed at left[0], split a, offsets 0 to 9; or at left[0], split b, offsets 0 to"
        " 9; or at left[0], split c, offsets 0 to 9; or at one of 1 other places: 7 is bad"
    )


def origin_in(split: str) -> RecordOrigin:
    return RecordOrigin(source=Uid("left"), subtask=0, split=split, first_offset=0, last_offset=9)


def iter_told(run: ScriptedRun) -> Iterator[object]:
    while not run.slots.told.empty():
        yield run.slots.told.get_nowait()


def test_the_late_end_of_an_older_stage_does_not_start_the_next_attempt(
    tmp_path: Path,
) -> None:
    at_once = {"restart-strategy.type": "fixed-delay", FIXED_DELAY + "delay": "0 ms"}
    run = ScriptedRun(tmp_path, {**SOON, **at_once, FIXED_DELAY + "attempts": "9"})
    run.wait_for_checkpoints(1)
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])
    run.slots.dies_slowly = True
    run.slots.say(Attempt(2), failure("a slot died again"))

    run.slots.post(StageEnded(Attempt(1), "once more"))
    for number in (1, 2):  # the master has handled the end and the work due since
        run.slots.post(StrangerRefused(Attempt(1), f"stranger {number}"))
    run.wait_for(lambda: len(run.of(ZombieRefused)) == 2)
    attempts = list(run.slots.attempts)
    run.slots.post(StageEnded(Attempt(2), ""))

    run.wait_for(lambda: run.slots.attempts == [1, 2, 3])
    assert attempts == [1, 2]
    run.slots.dies_slowly = False
    cancel(run)


NO_RESTART = {"restart-strategy.type": "none"}
LOADING = RestoreProgress(read_bytes=10, total_bytes=90, read_files=1, total_files=3)


def test_failed_checkpoints_fail_only_their_own_attempt(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(1)

    run.slots.post(TooManyFailedCheckpoints(Attempt(1), "two of them failed"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])
    run.slots.post(TooManyFailedCheckpoints(Attempt(1), "told late"))
    run.slots.say(Attempt(2), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2, 3])

    causes = [event.cause for event in run.of(FailureOccurred)]
    assert causes == ["two of them failed", "both[0]: a slot died"]
    cancel(run)


def test_slots_that_do_not_start_in_time_fail_the_attempt(tmp_path: Path) -> None:
    settings, clock = {**NO_RESTART, "slot.request.timeout": "1 min"}, ManualClock()
    run = ScriptedRun(tmp_path, settings, slots=ScriptedSlots(are_brought_up=False), clock=clock)
    run.wait_for(lambda: run.slots.attempts == [1])

    clock.now_ms += 60_001
    run.wake()

    assert run.wait_until_over() is JobStatus.FAILED
    (failed,) = run.of(FailureOccurred)
    assert failed.cause == (
        "Spark on local[1] brought up 0 of 1 slots, and no other within 60 s"
        " (slot.request.timeout)."
    )


def test_restoring_slots_are_shown_and_exempt_from_the_request_timeout(tmp_path: Path) -> None:
    settings, clock = {**NO_RESTART, "slot.request.timeout": "2 s"}, ManualClock()
    run = ScriptedRun(tmp_path, settings, slots=ScriptedSlots(loads=True), clock=clock)
    run.wait_for(lambda: run.slots.attempts == [1])

    run.slots.say(Attempt(1), Restoring(progress=LOADING))
    for _ in range(4):  # a sample a second
        samples = len(run.of(MetricsSampled))
        clock.now_ms += 1_000
        run.wake()
        run.wait_for(lambda seen=samples: len(run.of(MetricsSampled)) > seen)  # type: ignore[misc]
    loading = run.of(MetricsSampled)[-1].restoring
    run.slots.say(Attempt(1), Deployed())
    run.wait_for(lambda: run.of(JobStatusChanged)[-1].status is JobStatus.RUNNING)
    samples = len(run.of(MetricsSampled))
    clock.now_ms += 1_000
    run.wake()
    run.wait_for(lambda: len(run.of(MetricsSampled)) > samples)

    assert loading == LOADING
    assert run.of(MetricsSampled)[-1].restoring is None
    assert run.of(FailureOccurred) == []
    cancel(run)


def test_a_restore_that_makes_no_progress_fails_the_attempt(tmp_path: Path) -> None:
    settings = {**NO_RESTART, "execution.state-recovery.standstill-timeout": "300 ms"}
    run = ScriptedRun(tmp_path, settings, slots=ScriptedSlots(loads=True))
    run.wait_for(lambda: run.slots.attempts == [1])
    run.slots.say(Attempt(1), Restoring(progress=LOADING))

    assert run.wait_until_over() is JobStatus.FAILED
    (failed,) = run.of(FailureOccurred)
    assert failed.cause == (
        "The restore stood still at 1 of 3 files for 0.3 s"
        " (execution.state-recovery.standstill-timeout); slots that did not end it: 0."
    )


@pytest.mark.parametrize(
    ("failures", "attempts", "status"),
    [(2, "5", JobStatus.FINISHED), (9, "3", JobStatus.FAILED)],
)
def test_an_unreachable_target_is_retried_as_the_restart_strategy_allows(
    tmp_path: Path, failures: int, attempts: str, status: JobStatus
) -> None:
    sink = AwaySink(failures)
    restarts = {FIXED_DELAY + "attempts": attempts, FIXED_DELAY + "delay": "10 ms"}

    run = ScriptedRun(tmp_path, {"restart-strategy.type": "fixed-delay", **restarts}, sink=sink)
    run.ask(StopWithSavepoint(request_id=RequestId("stop"), requested_by="ann", reason="upgrade"))

    assert run.wait_until_over() is status
    causes = [event.cause for event in run.of(FailureOccurred)]
    assert causes == ["The attempt cannot begin: the target is away"] * min(failures, 4)


def test_an_unexpected_storage_error_ends_the_driver_and_its_slots(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, SOON, store=BrokenStore([str(tmp_path)]))

    with pytest.raises(TypeError, match="a bug of the storage"):
        run.wait_until_over()

    assert [link.is_closed for link in run.slots.links] == [True]


def test_a_broken_rule_ends_the_driver_with_the_last_events_that_led_to_it(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(12)
    run.slots.post(SlotSpoke(Attempt(1), 0, Beat()))

    run.die()

    assert isinstance(run.error, InvariantViolated)
    events = run.error.last_events
    assert len(events) == LAST_EVENTS_MAX
    assert events[-1] == "slot 0 of attempt 99 is gone"
    assert any(re.fullmatch(r"checkpoint \d+ is triggered", event) for event in events)
    assert any(re.match(r"an acknowledgement of checkpoint \d+ by", event) for event in events)
    assert any(re.fullmatch(r".* checkpoint \d+ ended as PUBLISHED", event) for event in events)
    assert not [event for event in events if "Beat" in event]
    assert events[-1] in "".join(traceback.format_exception(run.error))


def test_a_run_whose_last_sweep_fails_is_not_over_until_a_driver_has_swept(tmp_path: Path) -> None:
    store = UnsweptStore([str(tmp_path)])
    run = ScriptedRun(tmp_path, {**SOON, RETENTION: "NO_EXTERNALIZED_CHECKPOINTS"}, store=store)
    path = Path(run.wait_for_checkpoints(1)[0].path)
    left = path / "left.arrow"

    store.is_broken = True
    run.ask(Cancel(**WHO, request_id=RequestId("cancel")))
    with pytest.raises(TypeError, match="a bug of the storage"):
        run.wait_until_over()

    assert JobStatus.CANCELED in [event.status for event in run.of(JobStatusChanged)]
    assert run.of(RunEnded) == []
    path.mkdir(exist_ok=True)
    left.touch()
    successor = ScriptedRun(tmp_path, {**SOON, RETENTION: "NO_EXTERNALIZED_CHECKPOINTS"})
    assert successor.wait_until_over() is JobStatus.CANCELED
    assert len(successor.of(RunEnded)) == 1
    assert not left.exists()


def test_an_error_while_the_last_slots_die_ends_the_driver_too(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.slots.dies_slowly = True
    run.wait_for_checkpoints(1)
    run.ask(Cancel(**WHO, request_id=RequestId("cancel")))
    run.wait_for(lambda: JobStatus.CANCELED in [e.status for e in run.of(JobStatusChanged)])

    run.slots.post(WorkFailed(TypeError("a bug beside the master")))
    run.slots.post(StageEnded(Attempt(1), "cancelled"))

    with pytest.raises(TypeError, match="a bug beside the master"):
        run.wait_until_over()
    assert run.of(RunEnded) == []


class UnsweptStore(FileSystemCheckpointStore):
    is_broken = False

    def names(self, directory: str) -> list[str]:
        if self.is_broken:
            raise TypeError("a bug of the storage")
        return super().names(directory)


class BrokenStore(FileSystemCheckpointStore):
    def publish(self, location: str, manifest: Manifest) -> Publication:
        raise TypeError("a bug of the storage")


class AwaySink(MemorySink):
    """A sink whose target does not answer the first `failures` calls."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures_left = failures

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        if self._failures_left:
            self._failures_left -= 1
            raise Retryable("the target is away")
        return super().rewind(ancestors, run_id)


def test_a_stop_with_savepoint_ends_the_run(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path)
    run.ask(StopWithSavepoint(request_id=RequestId("stop"), requested_by="ann", reason="upgrade"))

    assert run.wait_until_over() is JobStatus.FINISHED
    assert [event.kind.value for event in run.of(CheckpointCompleted)] == ["SAVEPOINT"]


@pytest.mark.parametrize("end", ["finish", "cancel", "fail"])
@pytest.mark.parametrize(
    ("policy", "left_by"),
    [
        ("RETAIN_ON_CANCELLATION", ["cancel", "fail"]),
        ("DELETE_ON_CANCELLATION", ["fail"]),
        ("NO_EXTERNALIZED_CHECKPOINTS", []),
    ],
)
def test_an_ended_run_keeps_checkpoints_according_to_its_retention(
    tmp_path: Path, policy: str, left_by: list[str], end: str
) -> None:
    run = ScriptedRun(tmp_path, {**SOON, RETENTION: policy, "restart-strategy.type": "none"})
    run.wait_for_checkpoints(2)

    match end:
        case "finish":
            for vertex in ("left", "right"):
                run.slots.say(Attempt(1), SourcesEnded(vertex=Uid(vertex), subtask=0))
            assert run.wait_until_over() is JobStatus.FINISHED
        case "cancel":
            cancel(run)
        case "fail":
            run.slots.say(Attempt(1), failure("a slot died"))
            assert run.wait_until_over() is JobStatus.FAILED

    newest = run.of(CheckpointCompleted)[-1]
    discarded = [event.checkpoint_id for event in run.of(CheckpointDiscarded)]
    assert Path(newest.path).exists() is (end in left_by)
    assert (newest.checkpoint_id in discarded) is (end not in left_by)


def test_files_that_a_dying_slot_writes_do_not_outlive_the_run(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.slots.acknowledges = False
    run.slots.dies_slowly = True
    run.wait_for(lambda: bool(run.slots.injected))
    run.ask(Cancel(**WHO, request_id=RequestId("cancel")))
    run.wait_for(lambda: JobStatus.CANCELED in [e.status for e in run.of(JobStatusChanged)])

    late = Path(places_in(tmp_path).checkpoint(CheckpointId(1))) / "late.arrow"
    late.parent.mkdir(parents=True, exist_ok=True)
    late.touch()
    run.slots.post(StageEnded(Attempt(1), "cancelled"))

    assert run.wait_until_over() is JobStatus.CANCELED
    assert not late.parent.exists()


@pytest.mark.parametrize("is_left", [True, False])
def test_the_next_driver_finishes_an_interrupted_cleanup(tmp_path: Path, is_left: bool) -> None:
    run = ScriptedRun(tmp_path, {**SOON, RETENTION: "NO_EXTERNALIZED_CHECKPOINTS"})
    path = Path(run.wait_for_checkpoints(1)[0].path)
    saved = tmp_path / "saved"
    shutil.copytree(path, saved)
    cancel(run)
    if is_left:
        shutil.copytree(saved, path)  # as if it had died before it deleted this one
    ended = run.of(RunEnded)

    successor = ScriptedRun(tmp_path, {**SOON, RETENTION: "NO_EXTERNALIZED_CHECKPOINTS"})

    assert successor.wait_until_over() is JobStatus.CANCELED
    assert successor.slots.attempts == []
    assert not path.exists()
    assert successor.of(RunEnded) == ended * 2


@pytest.mark.parametrize("spelled", ["link", "real/../real"])
def test_the_next_driver_keeps_its_points_however_the_storage_path_is_spelled(
    tmp_path: Path, spelled: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    root = f"{tmp_path}/{spelled}"
    given = {
        "execution.checkpointing.interval": "off",
        "execution.checkpointing.dir": root,
        "execution.checkpointing.savepoint-dir": root,
        RETENTION: "RETAIN_ON_CANCELLATION",
    }
    run = ScriptedRun(tmp_path, given)
    run.ask(TakeSavepoint(**WHO, request_id=RequestId("one")))
    run.wait_for_checkpoints(1)
    run.ask(TriggerCheckpoint(**WHO, request_id=RequestId("two")))
    points = run.wait_for_checkpoints(2)
    run.die()

    successor = ScriptedRun(tmp_path, given)
    cancel(successor)

    assert [(Path(point.path) / MANIFEST).exists() for point in points] == [True, True]


def test_a_driver_that_finds_none_of_the_points_does_not_start_afresh(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off"})
    run.ask(TriggerCheckpoint(**WHO, request_id=RequestId("one")))
    (point,) = run.wait_for_checkpoints(1)
    run.die()
    Path(point.path).parent.rename(tmp_path / "not mounted")

    with pytest.raises(Retryable, match=f"{point.path}, and no point .* is mounted"):
        ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off"})


@pytest.mark.parametrize("place", ["empty", "absent"])
def test_a_driver_waits_for_the_disk_of_a_savepoint_newer_than_its_points(
    tmp_path: Path, place: str
) -> None:
    mount = tmp_path / "mount"
    run = elsewhere(tmp_path)
    older, newest = checkpoint_and_savepoint(run)
    aside = mount.rename(tmp_path / "unmounted")
    if place == "empty":
        mount.mkdir()

    with pytest.raises(Retryable, match=f"{newest.path}, and it is not there .* is mounted"):
        elsewhere(tmp_path)

    if place == "empty":
        mount.rmdir()
    aside.rename(mount)
    successor = elsewhere(tmp_path)
    cancel(successor)
    assert restored_by(successor) == [newest.checkpoint_id]
    assert successor.of(RestorePointRefused) == []
    assert older.checkpoint_id < newest.checkpoint_id


def test_a_disk_that_returns_while_the_driver_looks_hides_no_newer_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, unmounted = tmp_path / "mount", tmp_path / "unmounted"
    run = elsewhere(tmp_path)
    _, newest = checkpoint_and_savepoint(run)
    mount.rename(unmounted)
    names = FileSystemCheckpointStore.names
    looks: list[str] = []

    def names_and_mount(store: FileSystemCheckpointStore, root: str) -> list[str]:
        found = names(store, root)
        looks.append(root)
        if looks.count(str(mount)) == 1 and unmounted.exists():
            unmounted.rename(mount)
        return found

    monkeypatch.setattr(FileSystemCheckpointStore, "names", names_and_mount)
    with suppress(Retryable):
        cancel(elsewhere(tmp_path))
    monkeypatch.undo()

    successor = elsewhere(tmp_path)
    cancel(successor)
    assert restored_by(successor) == [newest.checkpoint_id]
    assert successor.of(RestorePointRefused) == []


@pytest.mark.parametrize("left", ["nothing", "its directory"])
def test_a_driver_reports_a_deleted_newest_point_and_uses_the_older_one(
    tmp_path: Path, left: str
) -> None:
    run = elsewhere(tmp_path)
    older, newest = checkpoint_and_savepoint(run)
    (tmp_path / "mount" / "savepoint-of-another-run-7").mkdir()
    shutil.rmtree(newest.path)
    if left == "its directory":
        Path(newest.path).mkdir()

    successor = elsewhere(tmp_path)
    cancel(successor)

    [refused] = successor.of(RestorePointRefused)
    assert refused.path == newest.path
    assert f"not there any more: the run goes back to {older.path}" in refused.message
    assert restored_by(successor) == [older.checkpoint_id]


def test_a_recovery_waits_for_the_disk_of_the_newest_point(tmp_path: Path) -> None:
    """In a recovery, the driver does not list its points again; it looks at those that it knows."""
    mount = tmp_path / "mount"
    run = elsewhere(tmp_path)
    _, newest = checkpoint_and_savepoint(run, ends=False)
    aside = mount.rename(tmp_path / "unmounted")

    run.slots.say(Attempt(1), failure("a slot that failed"))
    run.wait_for(lambda: any("is mounted" in event.cause for event in run.of(FailureOccurred)))
    aside.rename(mount)
    run.wait_for(lambda: bool(restored_by(run)))
    cancel(run)

    assert restored_by(run) == [newest.checkpoint_id]
    assert run.of(RestorePointRefused) == []


def test_a_recovery_uses_the_newest_point_if_its_disk_returns_mid_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, unmounted = tmp_path / "mount", tmp_path / "unmounted"
    run = elsewhere(tmp_path)
    _, newest = checkpoint_and_savepoint(run, ends=False)
    verify = FileSystemCheckpointStore.verify

    def verify_and_mount(*arguments: Any, **named: Any) -> Any:
        damages = verify(*arguments, **named)
        if unmounted.exists():
            unmounted.rename(mount)
        return damages

    monkeypatch.setattr(FileSystemCheckpointStore, "verify", verify_and_mount)
    mount.rename(unmounted)

    run.slots.say(Attempt(1), failure("a slot that failed"))
    run.wait_for(lambda: any("is mounted" in event.cause for event in run.of(FailureOccurred)))
    if unmounted.exists():
        unmounted.rename(mount)
    run.wait_for(lambda: bool(restored_by(run)))
    cancel(run)

    assert restored_by(run) == [newest.checkpoint_id]


def elsewhere(tmp_path: Path) -> ScriptedRun:
    """Starts a run whose savepoints are on another disk."""
    jobs, mount = tmp_path / "jobs", str(tmp_path / "mount")
    settings = {
        "execution.checkpointing.interval": "off",
        "execution.checkpointing.savepoint-dir": mount,
        "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    }
    store = FileSystemCheckpointStore([str(jobs), mount])
    return ScriptedRun(jobs, settings, store=store)


def checkpoint_and_savepoint(run: ScriptedRun, *, ends: bool = True) -> list[CheckpointCompleted]:
    run.ask(TriggerCheckpoint(**WHO, request_id=RequestId("one")))
    run.wait_for_checkpoints(1)
    run.ask(TakeSavepoint(**WHO, request_id=RequestId("two")))
    points = run.wait_for_checkpoints(2)
    if ends:
        run.die()
    return points


def restored_by(run: ScriptedRun) -> list[CheckpointId | None]:
    reached = run.of(RecoveryPhaseReached)
    return [e.restored_checkpoint_id for e in reached if e.phase is RecoveryPhase.DECIDE]


def test_without_an_interval_only_requested_checkpoints_are_taken(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off"})
    run.ask(TriggerCheckpoint(**WHO, request_id=RequestId("one")))

    run.wait_for_checkpoints(1)
    cancel(run)

    assert [event.request_id for event in run.of(CheckpointTriggered)] == ["one"]


def test_a_checkpoint_request_is_refused_while_some_sources_have_finished(tmp_path: Path) -> None:
    none_after = {"execution.checkpointing.checkpoints-after-tasks-finish": "false"}
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off", **none_after})
    run.wait_for(lambda: JobStatus.RUNNING in [e.status for e in run.of(JobStatusChanged)])
    run.slots.say(Attempt(1), SourcesEnded(vertex=Uid("left"), subtask=0))
    run.ask(TriggerCheckpoint(**WHO, request_id=RequestId("one")))

    run.wait_for(lambda: bool(run.of(CheckpointFailed)))
    run.slots.say(Attempt(1), SourcesEnded(vertex=Uid("right"), subtask=0))

    assert run.wait_until_over() is JobStatus.FINISHED
    (refused,) = run.of(CheckpointFailed)
    (ended,) = run.of(RequestEnded)
    assert refused.reason is CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert (refused.checkpoint_id, refused.request_id) == (None, "one")
    assert ended.message == "Not all required tasks are currently running."
    assert [event.kind.value for event in run.of(CheckpointCompleted)] == ["FINAL"]


def test_a_wanted_reservation_triggers_a_checkpoint_before_the_interval_ends(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "1 d"})
    run.wait_for(lambda: JobStatus.RUNNING in [e.status for e in run.of(JobStatusChanged)])

    run.slots.say(Attempt(1), ReservationWanted(vertex=Uid("left"), subtask=0))

    run.wait_for(lambda: bool(run.of(CheckpointCompleted)))
    cancel(run)


def test_sources_that_have_nothing_to_read_end_the_run_too(tmp_path: Path) -> None:
    """The sources end before the last slot reports that it is running."""
    run = ScriptedRun(tmp_path, SOON, has_nothing_to_read=True)

    assert run.wait_until_over() is JobStatus.FINISHED
    assert run.of(CheckpointCompleted)[-1].kind is CheckpointKind.FINAL


WAITS = {
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 min",
    "restart-strategy.exponential-delay.max-backoff": "10 min",
    "restart-strategy.exponential-delay.jitter-factor": "0",
}


def test_a_retry_ends_the_wait_before_a_restart_and_the_wait_is_its_own_phase(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {**SOON, **WAITS})
    run.wait_for_checkpoints(1)
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: bool(run.of(RestartScheduled)))
    run.ask(RetryNow(**WHO, request_id=RequestId("now")))

    run.wait_for(lambda: RecoveryPhase.RESTORE in phases_of(run))
    run.ask(RetryNow(**WHO, request_id=RequestId("again")))
    run.wait_for(lambda: len(run.of(RequestEnded)) == 2)
    run.slots.say(Attempt(2), failure("a slot died again"))
    run.wait_for(lambda: len(run.of(RestartScheduled)) == 2)
    cancel(run)

    first, second = run.of(RestartScheduled)
    assert (first.attempt, first.delay_ms, second.attempt) == (2, 60_000, 3)
    assert second.delay_ms > 60_000  # not the rest of the wait that the person ended
    done, refused = run.of(RequestEnded)[:2]
    assert (done.outcome, done.message) == (RequestOutcome.SUCCEEDED, "Attempt 2 starts now.")
    assert refused.outcome is RequestOutcome.REJECTED
    assert refused.message == "No restart waits: attempt 2 is RUNNING."
    spent = phases_of(run)
    assert list(spent)[:5] == ["detect", "decide", "stop", "backoff", "start"]
    assert 0 < spent[RecoveryPhase.BACKOFF] < 60_000


def test_a_run_reports_how_long_a_restart_would_wait_now(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, {**SOON, **WAITS})
    run.wait_for_checkpoints(1)
    run.wait_for(lambda: bool(run.of(MetricsSampled)))
    cancel(run)

    assert run.of(MetricsSampled)[0].next_restart_delay_ms == 60_000


def phases_of(run: ScriptedRun) -> dict[RecoveryPhase, float]:
    """Returns the duration of each phase of the first recovery."""
    spent: dict[RecoveryPhase, float] = {}
    for event in run.of(RecoveryPhaseReached):
        spent.setdefault(event.phase, event.duration_ms)
    return spent


def test_a_changed_setting_applies_at_once_and_to_the_next_driver(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "1 h"})
    run.wait_for(lambda: JobStatus.RUNNING in [e.status for e in run.of(JobStatusChanged)])
    change = {"execution.checkpointing.interval": "20 ms"}
    run.ask(ChangeSettings(**WHO, request_id=RequestId("faster"), settings=change))

    run.wait_for_checkpoints(2)
    run.die()
    successor = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "1 h"})
    successor.wait_for_checkpoints(len(run.of(CheckpointCompleted)) + 2)

    cancel(successor)
    (event,) = run.of(SettingsChanged)
    assert (event.settings, event.changed) == (change, change)
    assert (event.requested_by, event.reason) == ("ann", "try")
    assert (
        run.of(RequestEnded)[0].message == "From now on: execution.checkpointing.interval = 20 ms."
    )
    assert successor.of(RunStarted)[-1].settings == change


class PatientSink(MemorySink):
    """A sink whose target rolls back a transaction that is open for this long."""

    transaction_timeout_ms = 900_000


@pytest.mark.parametrize(("sink", "told"), [(MemorySink, {}), (PatientSink, {"out": 900_000})])
def test_a_driver_reports_the_transaction_timeouts_of_its_sinks(
    tmp_path: Path, sink: type[MemorySink], told: dict[str, int]
) -> None:
    run = ScriptedRun(tmp_path, SOON, sink=sink())

    run.wait_for(lambda: bool(run.of(RunStarted)))

    cancel(run)
    assert run.of(RunStarted)[0].transaction_timeouts_ms == told


def test_an_impossible_change_of_settings_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    change = {"execution.checkpointing.num-retained": "9"}
    run.ask(ChangeSettings(**WHO, request_id=RequestId("more"), settings=change))

    run.wait_for(lambda: bool(run.of(RequestEnded)))

    cancel(run)
    refused = run.of(RequestEnded)[0]
    assert refused.outcome is RequestOutcome.REJECTED
    assert "num-retained cannot change during a run" in refused.message
    assert run.of(SettingsChanged) == []


@pytest.mark.parametrize("given", [True, False])
def test_every_slot_receives_the_compression_and_digest_settings(
    tmp_path: Path, given: bool
) -> None:
    keys = ("execution.checkpointing.snapshot-compression", "execution.ledger.digest")
    run = ScriptedRun(tmp_path, dict.fromkeys(keys, str(given)))

    deployment = run.slots.told.get(timeout=60)

    assert isinstance(deployment, Deploy)
    assert (deployment.compresses_snapshots, deployment.digests_output) == (given, given)
    cancel(run)


@pytest.mark.parametrize("is_acked", [True, False])
def test_slots_track_records_and_do_not_coalesce_batches_only_in_mode_acked(
    tmp_path: Path, is_acked: bool
) -> None:
    acked = {"execution.checkpointing.mode": "ACKED", "topology.message.timeout.secs": "7"}
    run = ScriptedRun(tmp_path, acked if is_acked else {})

    deployment = run.slots.told.get(timeout=60)

    assert isinstance(deployment, Deploy)
    assert deployment.acking == (AckingOptions(timeout_ms=7_000) if is_acked else None)
    assert deployment.inputs == (AS_SENT if is_acked else InputOptions())
    cancel(run)


def test_the_end_of_a_run_fails_pending_checkpoints_with_the_shutdown_reason(
    tmp_path: Path,
) -> None:
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off"})
    run.slots.acknowledges = False
    run.ask(TakeSavepoint(**WHO, request_id=RequestId("slow")))
    run.wait_for(lambda: bool(run.slots.injected))
    run.slots.acknowledges = True
    run.slots.say(Attempt(1), SourcesEnded(vertex=Uid("left"), subtask=0))
    run.slots.say(Attempt(1), SourcesEnded(vertex=Uid("right"), subtask=0))
    run.ask(StopWithSavepoint(**WHO, request_id=RequestId("stop")))

    assert run.wait_until_over() is JobStatus.FINISHED
    (failed,) = run.of(CheckpointFailed)
    answers = {ended.request_id: ended.outcome for ended in run.of(RequestEnded)}
    assert failed.reason is CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert answers == {"slow": RequestOutcome.FAILED, "stop": RequestOutcome.SUCCEEDED}


@pytest.mark.parametrize("mode", ["cancelled", "failed", "acknowledged", "failed as a whole"])
def test_the_end_of_an_attempt_fails_checkpoints_with_flinks_reason(
    tmp_path: Path, mode: str
) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.slots.acknowledges = False
    run.wait_for(lambda: bool(run.of(CheckpointTriggered)))
    if mode == "acknowledged":
        run.slots.say(Attempt(1), acknowledgement(CheckpointId(1), "both"))
    if mode == "failed as a whole":
        run.slots.say(Attempt(1), PeerLost(problem="reset by peer"))
    elif mode != "cancelled":
        run.slots.say(Attempt(1), failure("a slot died"))
    if mode != "cancelled":
        run.wait_for(lambda: bool(run.of(CheckpointFailed)))

    cancel(run)

    expected = {
        "cancelled": CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        "failed": CheckpointFailureReason.TASK_FAILURE,
        "acknowledged": CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        "failed as a whole": CheckpointFailureReason.TASK_FAILURE,
    }
    assert run.of(CheckpointFailed)[0].reason is expected[mode]


@pytest.mark.parametrize(
    ("on_damaged", "ends"), [("older", JobStatus.CANCELED), ("fail", JobStatus.FAILED)]
)
def test_a_damaged_point_is_skipped_only_if_older_points_may_be_used(
    tmp_path: Path, on_damaged: str, ends: JobStatus
) -> None:
    run = ScriptedRun(
        tmp_path,
        {
            "execution.checkpointing.interval": "off",
            "execution.checkpointing.verification-interval": "50 ms",
            "execution.state-recovery.on-damaged-point": on_damaged,
        },
    )
    for number in (1, 2):
        run.ask(TriggerCheckpoint(**WHO, request_id=RequestId(f"point-{number}")))
        newest = run.wait_for_checkpoints(number)[-1]
    (Path(newest.path) / MANIFEST).write_bytes(b"damaged")
    run.wait_for(lambda: any(event.damaged for event in run.of(PointsVerified)))

    run.slots.say(Attempt(1), failure("a slot died"))
    if ends is JobStatus.CANCELED:
        run.wait_for(lambda: run.slots.attempts == [1, 2])
        cancel(run)

    assert run.wait_until_over() is ends


@pytest.mark.parametrize(
    ("on_damaged", "points", "ends"),
    [
        ("older", 2, JobStatus.CANCELED),
        ("older", 1, JobStatus.FAILED),
        ("fail", 2, JobStatus.FAILED),
    ],
)
@pytest.mark.parametrize("file", ["c1-a1-base", None], ids=["a file", "no one file"])
def test_damage_that_a_slot_meets_makes_the_run_use_an_older_point_if_any(
    tmp_path: Path, on_damaged: str, points: int, ends: JobStatus, file: str | None
) -> None:
    """The driver has found the point whole, but the slot reads damaged state."""
    settings = {
        "execution.checkpointing.interval": "off",
        "execution.state-recovery.on-damaged-point": on_damaged,
    }
    run = ScriptedRun(tmp_path, settings)
    for number in range(1, points + 1):
        run.ask(TriggerCheckpoint(**WHO, request_id=RequestId(f"point-{number}")))
        newest = run.wait_for_checkpoints(number)[-1]
    run.slots.loads = True
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])

    met = msgspec.structs.replace(
        failure("c1-a1-base is missing."), is_fatal=True, damaged_file=file, is_damage=True
    )
    run.slots.loads = False
    run.slots.say(Attempt(2), met)
    if ends is JobStatus.CANCELED:
        run.wait_for(lambda: run.slots.attempts == [1, 2, 3])
        cancel(run)

    assert run.wait_until_over() is ends
    told = [(e.path, e.message) for e in run.of(RestorePointRefused)]
    assert told[0] == (newest.path, "c1-a1-base is missing.")
    decided = [e for e in run.of(RecoveryPhaseReached) if e.phase is RecoveryPhase.DECIDE]
    restored = [event.restored_path != newest.path for event in decided]
    assert restored == ([False, True] if ends is JobStatus.CANCELED else [False])


def test_a_running_slots_damage_without_a_file_marks_no_point_and_ends_the_run(
    tmp_path: Path,
) -> None:
    """A later checkpoint may have written the damaged data, so the starting point may be whole."""
    run = ScriptedRun(tmp_path, {"execution.checkpointing.interval": "off"})
    for number in (1, 2):
        run.ask(TriggerCheckpoint(**WHO, request_id=RequestId(f"point-{number}")))
        run.wait_for_checkpoints(number)
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])
    run.wait_for(lambda: run.of(JobStatusChanged)[-1].status is JobStatus.RUNNING)

    met = msgspec.structs.replace(failure("a segment is torn"), is_fatal=True, is_damage=True)
    run.slots.say(Attempt(2), met)

    assert run.wait_until_over() is JobStatus.FAILED
    assert run.of(RestorePointRefused) == []


def failure(cause: str) -> Failed:
    return Failed(vertex=Uid("both"), subtask=0, cause=cause, detail="", is_fatal=False)


def cancel(run: ScriptedRun) -> None:
    run.ask(Cancel(request_id=RequestId("cancel"), requested_by="ann", reason="enough"))
    assert run.wait_until_over() is JobStatus.CANCELED
