"""Processes on this machine: found by id, and hit only if they are the expected ones.

Another process may have the id by now; a process that a driver has started has the run's id in its
environment.
"""

from datetime import datetime

import psutil

from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.supervision.launcher import RUN_ID_VARIABLE
from pipelines.bus.lease import Owner, began_after_boot_s
from pipelines.domain.errors import Rejected


def process_of(run_id: str, pid: int | None, what: str) -> psutil.Process:
    """Raises Rejected if it is gone, on another machine, or does not belong to the run."""
    if pid is None:
        raise Rejected(f"{what} of run {run_id} is not known at the moment.")
    try:
        process = psutil.Process(pid)
        owner = process.environ().get(RUN_ID_VARIABLE)
    except psutil.NoSuchProcess:
        raise Rejected(f"{what}, process {pid}, is not on this machine, or is gone.") from None
    except psutil.AccessDenied:
        owner = None
    if owner != run_id:
        raise Rejected(f"Process {pid} is not {what.lower()} of run {run_id}; nothing was done.")
    return process


def watching_worker() -> psutil.Process:
    """The Celery worker that last did the round over all runs.

    Raises Rejected if there was none, or if its process is on another machine or no such worker.
    """
    beat = Heartbeat.objects.filter(name=HeartbeatName.RECONCILE).first()
    if beat is None:
        raise Rejected("No worker has watched yet.")
    try:
        process = psutil.Process(beat.pid)
        is_worker = any("celery" in word for word in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        raise Rejected(
            f"The worker that watches, process {beat.pid}, is not on this machine, or is gone."
        ) from None
    if not is_worker:
        raise Rejected(f"Process {beat.pid} is no Celery worker; nothing was done.")
    return process


def watched_since(killed: Owner, killed_at: datetime) -> datetime | None:
    """When a worker other than the killed one did its round."""
    beat = Heartbeat.objects.filter(name=HeartbeatName.RECONCILE, at__gt=killed_at).first()
    if beat is None or (beat.pid == killed.pid and not _has_successor(killed)):
        return None
    return beat.at


def _has_successor(killed: Owner) -> bool:
    """True if another process has its id, as in a restarted container."""
    try:
        is_there = psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return is_there and not killed.is_alive


def identity_of(process: psutil.Process) -> Owner:
    """Distinguishes it from a later process with its id."""
    return Owner(
        pid=process.pid,
        process_began_s=began_after_boot_s(process.pid),
        host="",
        acquired_at=0.0,
    )


def forbid_writing(process: psutil.Process) -> None:
    """None of its files can grow any more: a write fails as on a full disk. Sockets keep working.

    Python ignores the signal that would end the process, and raises an OSError instead.
    """
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))


def release(held: Owner) -> None:
    """Lets it continue and write again. Harmless if it does so already, or is gone."""
    process = held.process()
    if process is None:
        return
    try:
        process.resume()
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    except psutil.NoSuchProcess:
        return
