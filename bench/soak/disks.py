"""Faults of the disks that pipelines write to, and damage to their checkpoints."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import psutil
from django.conf import settings

from bench.drill import incidents
from bench.drill.staging import CHECKPOINTS_BEFORE, Staged
from bench.soak.fault_context import FaultContext, request_and_wait
from bench.soak.flow import REDIS_POSTGRES
from bench.soak.schedule import Fault
from ftdash.gameday.injection import forbid_writing, identity_of, release
from ftdash.jobs.models import Run
from pipelines.domain.commands import SlowSlot
from pipelines.domain.errors import Rejected

DISK = "points"
"""The directory of a small disk for checkpoints, within the place of the pipeline `ON_DISK`."""

ON_DISK = REDIS_POSTGRES
"""The pipeline whose checkpoints are on a small disk."""

FLUSH_S = (0.02, 1.0)
"""How long each flush to a slow disk waits. A checkpoint has about ten flushes and gives up after
10 s."""

MANIFEST, NAMED = "manifest.json", "chk-"
LETS_GO_WITHIN_S = 10.0
SLOW_UPLOAD_MS = 3000
TORN_SHARE = 0.5


def disk_full(context: FaultContext) -> None:
    context.for_its_length(partial(incidents.filled_disk, DISK))


def disk_read_only(context: FaultContext) -> None:
    context.for_its_length(incidents.read_only_disk)


def disk_slow(context: FaultContext) -> None:
    """Makes each flush of the pipeline wait, as if other processes kept the disk busy."""
    run = context.staged.run
    pids = {slot["pid"] for slot in run.slots.values()} | {run.driver_pid}
    with slow_flushes([pid for pid in pids if pid], context.rng.uniform(*FLUSH_S)):
        time.sleep(context.length_s)


def disk_failing(context: FaultContext) -> None:
    """Makes each flush of the slots fail with EIO, as on a broken disk."""
    pids = [slot["pid"] for slot in context.staged.run.slots.values()]
    with altered_flushes(pids, "error=EIO"):
        time.sleep(context.length_s)


def slot_writes_nothing(context: FaultContext) -> None:
    """Makes each write of a slot to a file fail, as on a full disk, by a limit of the process."""
    slot = context.slot
    held = identity_of(slot)
    try:
        with suppress(psutil.NoSuchProcess):
            forbid_writing(slot)
        time.sleep(context.length_s)
    finally:
        release(held)


def uploads_slow(context: FaultContext) -> None:
    for_ms = round(1000 * context.length_s)
    slow = SlowSlot(slot=context.slot_number, delay_ms=SLOW_UPLOAD_MS, for_ms=for_ms)
    request_and_wait(context.staged, slow)
    time.sleep(context.length_s)


def checkpoint_damaged(context: FaultContext) -> None:
    """Damages a file of the newest checkpoint, and kills a slot; the run uses an older checkpoint.

    The driver stands still meanwhile, so that no newer checkpoint completes in between.
    """
    staged = context.staged
    staged.wait(
        lambda run: (
            run.driver_pid is not None and len(_checkpoints(staged, run)) >= CHECKPOINTS_BEFORE
        )
    )
    attempt, slot = staged.run.attempt, context.slot
    driver = psutil.Process(staged.run.driver_pid)
    driver.suspend()
    try:
        newest = _checkpoints(staged, staged.run)[-1]
        found = (each for each in newest.rglob("*") if each.is_file())
        files = sorted(each for each in found if each.stat().st_size)
        _damage(context.rng.choice(files), context.rng)
        slot.kill()
    finally:
        with suppress(psutil.NoSuchProcess):  # an earlier kill has reached it only now
            driver.resume()
    staged.wait(lambda run: run.is_terminal or run.attempt > attempt)
    staged.wait(lambda run: run.is_terminal or run.status == "RUNNING")


def _checkpoints(staged: Staged, run: Run) -> list[Path]:
    """Returns the complete checkpoints of the run, the oldest first; some may be deleted meanwhile.

    The run may not go back to the point from which it was restored, which belongs to another run.
    """
    roots = (settings.JOBS_ROOT / staged.name / "runs", staged.place / DISK)
    walks = (walk for root in roots for walk in os.walk(root / run.run_id))  # skips what is gone
    found = (Path(place) for place, _, files in walks if MANIFEST in files)
    return sorted(
        (each for each in found if each.name.startswith(NAMED)),
        key=lambda each: int(each.name.removeprefix(NAMED)),
    )


def _damage(file: Path, rng: Random) -> None:
    """Flips a bit of the file, or tears off its end."""
    content = bytearray(file.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < TORN_SHARE:
        content = content[:at]
    else:
        content[at] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


@contextmanager
def slow_flushes(pids: Sequence[int], flush_s: float) -> Iterator[None]:
    """Makes each flush of these processes to a disk take `flush_s` longer. They may end meanwhile.

    Raises Rejected if there is no strace, or it could not attach to any of them.
    """
    with altered_flushes(pids, f"delay_enter={round(flush_s * 1_000_000)}"):
        yield


@contextmanager
def altered_flushes(pids: Sequence[int], how: str) -> Iterator[None]:
    """`how` is what strace does to each flush. Raises Rejected like `slow_flushes`."""
    flushes = "fsync,fdatasync"
    words = ["strace", "--quiet=all", "--follow-forks", "--output=/dev/null"]
    words += [f"--trace={flushes}", f"--inject={flushes}:{how}"]
    try:
        tracer = subprocess.Popen([*words, *(f"--attach={pid}" for pid in pids)])
    except OSError as error:
        raise Rejected(f"altered flushes need strace; install it: {error}") from error
    try:
        yield
        if tracer.poll():
            raise Rejected(f"no flush was altered: strace ended with status {tracer.returncode}")
    finally:
        tracer.terminate()  # it lets go of the processes
        try:
            tracer.wait(LETS_GO_WITHIN_S)
        except subprocess.TimeoutExpired:
            # It waits for ever for a process of several threads that was just killed.
            tracer.kill()
            tracer.wait()


def why_no_disk(pipelines: Sequence[str]) -> str:
    if ON_DISK not in pipelines:
        return f"the pipeline {ON_DISK} is not among the chosen ones"
    can = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "a small disk needs root" if can.returncode else ""


def why_no_strace() -> str:
    command = ["strace", "--output=/dev/null", "--inject=fsync:delay_enter=1", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"altered flushes need strace; install it: {error}"
    return f"altered flushes need strace: {done.stderr.strip()}" if done.returncode else ""


ON_SMALL_DISK: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.DISK_FULL: disk_full,
    Fault.DISK_FULL_LONG: disk_full,
    Fault.DISK_READ_ONLY: disk_read_only,
}
"""Faults that need a small disk."""

OF_FLUSHES: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.DISK_SLOW: disk_slow,
    Fault.DISK_FAILING: disk_failing,
}
"""Faults that need strace."""

OF_FILES: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.SLOT_WRITES_NOTHING: slot_writes_nothing,
    Fault.UPLOADS_SLOW: uploads_slow,
    Fault.CHECKPOINT_DAMAGED: checkpoint_damaged,
}
