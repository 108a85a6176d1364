"""Storage that is full, read-only or slow: checkpoints fail by name and the run continues."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed, FailureOccurred
from pipelines.domain.ids import RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.polling import wait_until
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 3_600
PACED = {"pause_ms": "30", "total": str(TOTAL)}  # does not end until it is hurried
SOON = {"execution.checkpointing.interval": "50 ms"}
RUN = RunId("run-1")
DISK_BYTES = 1 << 20
NO_ROOM = "No space left on device"


@pytest.mark.parametrize("tolerable", [0, 1_000_000])
def test_a_full_disk_fails_checkpoints_by_name_until_there_is_room_again(
    tmp_path: Path, tolerable: int
) -> None:
    settings = {**SOON, "execution.checkpointing.tolerable-failed-checkpoints": str(tolerable)}
    with (
        small_disk(tmp_path) as disk,
        hosted_run(tmp_path, PACED, settings=settings, run_id=RUN) as run,
    ):
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        fill(disk)
        run.wait_for(lambda _: len(declined(run)) >= 2, STEP_S)
        if tolerable:  # otherwise slots die while they write
            wait_until(lambda: not list(disk.glob("*/.*")), within_s=STEP_S)
        (disk / "filler").unlink()
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)
        partial = [path.name for path in disk.glob("*/.*")]

    assert ended.status is JobStatus.FINISHED
    assert all(NO_ROOM in event.message for event in declined(run))
    assert bool(run.of(FailureOccurred)) == (tolerable == 0)
    assert partial == []
    assert_exact(tmp_path / "output", TOTAL)


def test_a_run_names_and_survives_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    settings = {**SOON, "execution.checkpointing.tolerable-failed-checkpoints": "1000000"}
    with (
        small_disk(tmp_path) as disk,
        hosted_run(tmp_path, PACED, settings=settings, run_id=RUN) as run,
    ):
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        remount(disk, "ro")
        run.wait_for(lambda _: len(declined(run)) >= 1, STEP_S)
        remount(disk, "rw")
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert all("Read-only file system" in event.message for event in declined(run))
    assert_exact(tmp_path / "output", TOTAL)


def test_an_output_that_is_a_file_ends_the_run_before_it_begins(
    tmp_path: Path,
) -> None:
    output = tmp_path / "blocked"
    output.touch()

    with hosted_run(tmp_path, {"output": str(output)}) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert f"The output directory {output} cannot be made: {output} is a file." in ended.reason
    assert len(run.of(FailureOccurred)) == 1


def test_a_lost_output_directory_fails_attempts_until_no_restart_is_left(
    tmp_path: Path,
) -> None:
    output, restarts = tmp_path / "output", 2
    limited = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(restarts),
        "restart-strategy.fixed-delay.delay": "50 ms",
        "execution.checkpointing.interval": "50 ms",
    }
    with hosted_run(tmp_path, {"hours_per_s": "0.1", "total": "7200"}, settings=limited) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        output.rename(tmp_path / "moved-away")
        output.touch()
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert str(output) in ended.reason
    assert len(run.of(FailureOccurred)) == restarts + 1


def test_a_slow_upload_expires_its_checkpoint_and_does_not_count_later(tmp_path: Path) -> None:
    settings = {
        **SOON,
        "execution.checkpointing.timeout": "300 ms",
        "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
        "testing.faults": "slow uploading slot=1 nth=4",
    }
    with hosted_run(tmp_path, PACED, settings=settings) as run:
        run.wait_for(lambda _: bool(run.of(CheckpointFailed)), STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    reasons = {e.event.reason for e in run.of(CheckpointFailed)}  # type: ignore[attr-defined]
    failed = [e.event.checkpoint_id for e in run.of(CheckpointFailed)]  # type: ignore[attr-defined]
    completed = [event.checkpoint_id for event in run.completed()]
    assert reasons == {CheckpointFailureReason.CHECKPOINT_EXPIRED}
    assert set(failed).isdisjoint(completed)
    assert completed[-1] > failed[0]
    points = [run.directory.path / "checkpoints" / f"chk-{n}" / "manifest.json" for n in failed]
    assert not any(point.exists() for point in points)
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


def test_a_full_output_disk_is_named_and_only_delays_the_run(
    tmp_path: Path,
) -> None:
    settings = {**SOON, "restart-strategy.exponential-delay.max-backoff": "200 ms"}
    slowly = {"pause_ms": "100", "total": str(TOTAL)}
    with (
        small_disk(tmp_path, tmp_path / "output") as disk,
        hosted_run(tmp_path, slowly, settings=settings, run_id=RUN) as run,
    ):
        run.wait_for(lambda _: len(run.completed()) >= 4, STEP_S)
        fill(disk)
        run.wait_for(lambda _: any(NO_ROOM in cause for cause in what_failed(run)), STEP_S)
        (disk / "filler").unlink()
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)
        assert_exact(disk, TOTAL)

    assert ended.status is JobStatus.FINISHED, ended.reason


def test_a_driver_with_a_full_journal_disk_is_replaced_once_there_is_room(tmp_path: Path) -> None:
    """The journal has no room for its end, so to the supervisor of drivers the run is not over."""
    slowly = {"pause_ms": "100", "total": str(TOTAL)}
    place = RunDirectory.of(tmp_path, "numbers", RUN).path
    with small_disk(tmp_path, place) as disk:
        with hosted_run(tmp_path, slowly, settings=SOON, run_id=RUN) as run:
            run.wait_for(lambda _: len(run.completed()) >= 4, STEP_S)
            fill(disk)
            run.process.wait(STEP_S)
        assert run.process.poll() not in (0, None)
        (disk / "filler").unlink()
        with hosted_run(tmp_path, run_id=RUN) as successor:
            hurry(tmp_path)
            ended = successor.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output", TOTAL)


@contextmanager
def small_disk(root: Path, disk: Path | None = None) -> Iterator[Path]:
    """Puts the checkpoints' directory of the run, or another one, on a disk of its own."""
    disk = disk or RunDirectory.of(root, "numbers", RUN).path / "checkpoints"
    disk.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)],
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(os.urandom(4096))
        except OSError:
            return


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


def what_failed(run: StartedRun) -> list[str]:
    """Returns the causes of failed checkpoints and attempts."""
    failures = [e.event.cause for e in run.of(FailureOccurred)]  # type: ignore[attr-defined]
    return [event.message for event in declined(run)] + failures


def declined(run: StartedRun) -> list[CheckpointFailed]:
    """Returns the checkpoints that failed because of the disk, not with their attempt."""
    events = [envelope.event for envelope in run.of(CheckpointFailed)]
    return [
        event
        for event in events
        if isinstance(event, CheckpointFailed)
        and event.reason is not CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    ]
