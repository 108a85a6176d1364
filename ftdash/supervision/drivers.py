"""Compares what should run with what runs, and repairs: starts, ends, gives up.

Rows say what should be; leases and journals say what is. All of it may run twice, and at the same
time as itself: starting is a conditional update and ending needs the lease. It writes columns of
its own only; what becomes of a run is written into the run's journal.
"""

import os
from datetime import datetime, timedelta
from enum import Enum, auto

import psutil
from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from ftdash.audits import process as audit_process
from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import (
    STARTS,
    TERMINAL_STATUSES,
    DesiredState,
    Request,
    RequestPhase,
    Run,
)
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.supervision import delivery, launcher
from ftdash.times import WallClock
from pipelines.bus.announce import announce_nothing
from pipelines.bus.journal import JournalWriter
from pipelines.bus.journal_reading import last_event
from pipelines.bus.lease import Lease, LeaseHeld, Owner, owner_of
from pipelines.bus.process_identity import began_after_boot_s
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred, JobStatusChanged, RunEnded
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus

WATCH_ENDED_RUNS_FOR = timedelta(minutes=10)


class Repair(Enum):
    NONE = auto()
    START = auto()
    CLOSE_AS_CANCELED = auto()  # nobody is there to carry out the cancel request
    GIVE_UP = auto()
    KILL = auto()  # the driver stays longer than it may


def reconcile() -> None:
    """One round over everything that may need repair; one run's trouble is not another's."""
    for key in _watched_runs():
        with isolated(f"The supervision of run row {key}"):
            supervise_run(key)
    delivery.deliver_forgotten()
    delivery.end_overdue()
    audit_process.start_forgotten()
    Heartbeat.objects.update_or_create(
        name=HeartbeatName.RECONCILE, defaults={"at": timezone.now(), "pid": os.getpid()}
    )


def supervise_run(run_key: int) -> None:
    """Repair one run, if it needs it."""
    run = Run.objects.select_related("pipeline").filter(pk=run_key).first()
    if run is None:
        return
    match needed_repair(run, timezone.now()):
        case Repair.START:
            _start(run)
        case Repair.CLOSE_AS_CANCELED:
            _close(run, JobStatus.CANCELED, "Canceled; its driver was gone already.")
        case Repair.GIVE_UP:
            _close(run, JobStatus.FAILED, _why_given_up(run))
        case Repair.KILL:
            _kill(run)
        case Repair.NONE:
            return


def needed_repair(run: Run, now: datetime) -> Repair:
    """1. A living driver is left alone, unless it overstays. 2. An ended journal is final.
    3. A driver that was just launched gets time. 4. Then a dead driver is replaced or given up.
    """
    directory = run_directory(run)
    if owner_of(directory) is not None:
        return Repair.KILL if _overstays(run, now) else Repair.NONE
    if isinstance(last_event(directory.journal_file), RunEnded):
        return Repair.NONE
    if _is_starting(run, now):
        return Repair.NONE
    if run.desired == DesiredState.STOPPED:
        return Repair.CLOSE_AS_CANCELED
    if _starts_in_row(run) >= settings.DRIVER_STARTS_MAX:
        return Repair.GIVE_UP
    return Repair.START if now >= _next_start_at(run, now) else Repair.NONE


def _watched_runs() -> list[int]:
    lately = timezone.now() - WATCH_ENDED_RUNS_FOR
    watched = ~Q(status__in=TERMINAL_STATUSES) | Q(ended_at__gt=lately)
    return list(Run.objects.filter(watched).values_list("pk", flat=True))


def _overstays(run: Run, now: datetime) -> bool:
    asked_at = run.ended_at if run.is_terminal else run.stop_requested_at
    grace = timedelta(seconds=settings.DRIVER_STOP_GRACE_S)
    return asked_at is not None and now > asked_at + grace


def _is_starting(run: Run, now: datetime) -> bool:
    if run.launched_pid is None or run.launched_process_started_at is None:
        return False
    launched = Owner(
        pid=run.launched_pid,
        process_began_s=run.launched_process_started_at,
        host="",
        acquired_at=0.0,
    )
    grace = timedelta(seconds=settings.DRIVER_STARTUP_GRACE_S)
    return (
        launched.is_alive
        and run.driver_started_at is not None
        and (abs(now - run.driver_started_at) < grace)
    )


def _starts_in_row(run: Run) -> int:
    """Drivers started since the run last got anywhere."""
    started_at, completed_at = run.driver_started_at, run.last_completed_at
    if started_at is not None and completed_at is not None and completed_at > started_at:
        return 0
    return run.driver_starts_in_row


def _next_start_at(run: Run, now: datetime) -> datetime:
    starts = _starts_in_row(run)
    if starts == 0 or run.driver_started_at is None:
        return now
    wait_s = settings.DRIVER_START_BACKOFF_S * 2 ** (starts - 1)
    wait = timedelta(seconds=min(wait_s, settings.DRIVER_START_BACKOFF_MAX_S))
    # A clock that was set back must not make anybody wait until it has caught up.
    return min(run.driver_started_at + wait, now + wait)


def _start(run: Run) -> None:
    """1. Win the right to start. 2. Clear away what the dead driver left. 3. Start."""
    starts = _starts_in_row(run) + 1
    unchanged = Run.objects.filter(
        pk=run.pk, driver_start_count=run.driver_start_count, desired=DesiredState.RUNNING
    )
    won = unchanged.update(
        driver_start_count=F("driver_start_count") + 1,
        driver_starts_in_row=starts,
        driver_started_at=timezone.now(),
        driver_note=_start_note(run, starts),
        launched_pid=None,
        launched_process_started_at=None,
        version=F("version") + 1,
    )
    if not won:
        return
    launcher.kill_driver_tree(run)
    try:
        driver = launcher.start_driver(run)
    except (OSError, Rejected, psutil.Error) as error:
        _note(run, f"A driver could not be started: {error}")
        raise
    Run.objects.filter(pk=run.pk).update(
        launched_pid=driver.pid, launched_process_started_at=began_after_boot_s(driver.pid)
    )
    Request.objects.filter(run=run, kind__in=STARTS, phase=RequestPhase.PENDING).update(
        phase=RequestPhase.DELIVERED, delivered_at=timezone.now()
    )


def _start_note(run: Run, starts: int) -> str:
    if run.driver_start_count == 0:
        return "Its driver is starting."
    words = launcher.last_log_line(run_directory(run))
    said = f" The last line of its log: {words}" if words else ""
    return (
        f"The driver is gone; another one is starting from the latest checkpoint (start {starts}"
        f" of at most {settings.DRIVER_STARTS_MAX} without a new checkpoint).{said}"
    )


def _why_given_up(run: Run) -> str:
    words = launcher.last_log_line(run_directory(run))
    said = f" The last line of driver.log: {words}" if words else ""
    return (
        f"{run.driver_starts_in_row} drivers in a row ended before a checkpoint completed, so no"
        f" more are started.{said}"
    )


def _close(run: Run, status: JobStatus, reason: str) -> None:
    """End the journal of a run without a driver, in a driver's place and under its lease."""
    directory = run_directory(run)
    launcher.kill_driver_tree(run)
    try:
        lease = Lease.acquire(directory)
    except LeaseHeld:
        return  # a driver came up meanwhile; the next round sees it
    run_id = RunId(run.run_id)
    with lease, JournalWriter(directory, run_id, WallClock(), announce_nothing) as journal:
        if isinstance(last_event(directory.journal_file), RunEnded):
            return
        attempt = lease.attempts_so_far()
        if status is JobStatus.FAILED:
            journal.append(FailureOccurred(cause=reason), attempt)
        journal.append(JobStatusChanged(status=status, reason=reason), attempt)
        journal.append(RunEnded(status=status, reason=reason), attempt)


def _kill(run: Run) -> None:
    owner = owner_of(run_directory(run))
    process = owner.process() if owner else None
    if process is not None:
        process.kill()
        _note(run, f"The driver (pid {process.pid}) did not end when asked to and was killed.")
    launcher.kill_driver_tree(run)


def _note(run: Run, sentence: str) -> None:
    Run.objects.filter(pk=run.pk).update(driver_note=sentence, version=F("version") + 1)
