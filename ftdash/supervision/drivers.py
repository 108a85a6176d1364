"""Compares what should run with what runs, and repairs it; delivers requests to drivers.

Rows say what should be; leases and journals say what is. All of it may run twice, even at the same
time: starting is a conditional update and ending needs the lease. It writes only columns of its
own; the outcome of a run goes into the run's journal.

`pipelines.protocol.driver_watch` decides if a driver still lives. The signs that it has seen are in
the memory of this process: a worker that starts knows nothing yet, so it gives every driver the
full time. Durations are of this process's monotonic clock, which stands still while the machine
sleeps.

A request goes into its run's inbox under its id, so delivering it twice is harmless.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from enum import Enum, auto

import psutil
from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from ftdash.audits import services as audit_process
from ftdash.errands import isolated
from ftdash.formats import age
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import (
    OPEN_PHASES,
    TERMINAL_STATUSES,
    DesiredState,
    Request,
    RequestPhase,
    Run,
)
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.points.services.disposal import dispose_of
from ftdash.requests.storing import end_request, move_request
from ftdash.supervision import launcher
from ftdash.times import WallClock
from pipelines.bus.announce import announce_nothing
from pipelines.bus.inbox import submit, withdraw
from pipelines.bus.journal import JournalWriter, last_event
from pipelines.bus.lease import Lease, LeaseHeld, Owner, began_after_boot_s, newest_sign, owner_of
from pipelines.domain.commands import COMMANDS, STARTS, DisposeSavepoint, RunCommand
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.events import DriverReplaced, FailureOccurred, JobStatusChanged, RunEnded
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.protocol.driver_watch import DriverWatch, Hung, Lives, Silent

_LATE = {
    RequestPhase.PENDING: "No worker delivered it within {patience}; it was withdrawn.",
    RequestPhase.DELIVERED: "The driver did not take it up within {patience}; it was withdrawn.",
    RequestPhase.ACCEPTED: "The driver did not finish it within {patience}; it may still end.",
}
_BY_STEPS = [kind for kind, command in COMMANDS.items() if command.ends_by_its_steps]
DISPOSAL_REPEATED_AFTER = timedelta(minutes=2)
_START_LATE = "The pipeline was not running after {patience}; its start continues."


def deliver(request_key: int) -> None:
    """Put one request into its driver's inbox, whether the driver is up or not."""
    request = Request.objects.select_related("run__pipeline").filter(pk=request_key).first()
    if request is None or request.run is None or request.phase != RequestPhase.PENDING:
        return
    if request.run.is_terminal:
        why = f"The run ended first: {request.run.reason}"
        end_request(request, RequestPhase.FAILED, why, timezone.now())
        return
    command = request.command
    if not isinstance(command, RunCommand):
        raise InvariantViolated(f"a driver carries out {request.kind}")
    submit(run_directory(request.run), command)
    move_request(request, RequestPhase.DELIVERED, delivered_at=timezone.now())


def deliver_forgotten() -> None:
    """Carries out requests whose message the broker lost or never got, or whose worker has died."""
    now = timezone.now()
    forgotten = now - timedelta(seconds=settings.DELIVERY_GRACE_S)
    left = Q(phase=RequestPhase.PENDING, created_at__lt=forgotten)
    # The worker has died or still deletes files; a second disposal at the same time is harmless.
    left |= Q(
        kind=DisposeSavepoint.kind,
        phase=RequestPhase.ACCEPTED,
        accepted_at__lt=now - DISPOSAL_REPEATED_AFTER,
    )
    requests = Request.objects.filter(left).exclude(kind__in=[*STARTS, *_BY_STEPS])
    for key, kind in requests.values_list("pk", "kind"):
        carry_out = dispose_of if kind == DisposeSavepoint.kind else deliver
        with isolated(f"The delivery of request row {key}"):
            carry_out(key)


def end_overdue() -> None:
    """Gives requests past their deadline their one terminal phase, with the reason."""
    now = timezone.now()
    overdue = Request.objects.filter(phase__in=OPEN_PHASES, deadline_at__lt=now)
    for request in overdue.exclude(kind__in=_BY_STEPS).select_related("run__pipeline"):
        with isolated(f"The end of request {request.request_id}"):
            _end_overdue(request, now)


def _end_overdue(request: Request, now: datetime) -> None:
    is_start = request.kind in STARTS
    if request.run is not None and not is_start and request.phase != RequestPhase.ACCEPTED:
        withdraw(run_directory(request.run), RequestId(request.request_id))
    sentence = _START_LATE if is_start else _LATE[RequestPhase(request.phase)]
    patience = age((request.deadline_at - request.created_at) / timedelta(milliseconds=1))
    end_request(request, RequestPhase.FAILED, sentence.format(patience=patience), now)


def _monotonic_ms() -> float:
    return time.monotonic() * 1000.0


class DriverWatches:
    """One watch per run. Thread-safe: two rounds may come at the same time."""

    def __init__(self, now_ms: Callable[[], float] = _monotonic_ms) -> None:
        self._now_ms = now_ms
        self._watches: dict[int, DriverWatch] = {}  # by the key of the run's row
        self._lock = threading.Lock()

    def look(self, run: Run, owner: Owner) -> Lives | Silent | Hung:
        """Raises OSError when the sign cannot be read: that says nothing about the driver."""
        if owner.epoch == 0:  # of a version that shows no signs of life
            return Lives()
        sign = newest_sign(run_directory(run))
        timeout_ms = _timeout_of(run)
        with self._lock:
            watch = self._watches.setdefault(run.pk, DriverWatch())
            return watch.on_look(owner.epoch, sign, self._now_ms(), timeout_ms)

    def keep_only(self, run_keys: Collection[int]) -> None:
        """Forgets the watches of all other runs, which have ended."""
        with self._lock:
            for key in self._watches.keys() - set(run_keys):
                del self._watches[key]


def _timeout_of(run: Run) -> float:
    """Returns the timeout in milliseconds, at least heartbeat.timeout. Raises Rejected.

    By then the slots of a driver that was stopped have ended themselves, wherever they run.
    """
    settings = parse_settings(run.settings_now)
    return max(settings.heartbeat.driver_timeout_ms, settings.heartbeat.timeout_ms)


def silence_of(found: Silent) -> str:
    """Returns a sentence for the page of the pipeline."""
    return (
        f"The driver has {found.symptom.value} for {age(found.for_ms)}; it is replaced after"
        f" {age(found.limit_ms)} (see heartbeat.driver-timeout)."
    )


WATCH_ENDED_RUNS_FOR = timedelta(minutes=10)

KILLED = "was killed"
FENCED = "was fenced off, because it could not be killed: it changes nothing when it resumes"

ALIVE = Lives()

watches = DriverWatches()


class Repair(Enum):
    NONE = auto()
    WAIT = auto()  # another driver starts, but not yet
    START = auto()
    CLOSE_AS_CANCELED = auto()  # no driver is left to carry out the cancel request
    GIVE_UP = auto()
    KILL = auto()  # the driver stays longer than it may
    REPLACE = auto()  # the driver hangs


def reconcile() -> None:
    """Does one round over everything that may need repair; a failure in one run stops no other."""
    watched = _watched_runs()
    watches.keep_only(watched)
    for key in watched:
        with isolated(f"The supervision of run row {key}"):
            supervise_run(key)
    deliver_forgotten()
    end_overdue()
    audit_process.start_forgotten()
    Heartbeat.objects.update_or_create(
        name=HeartbeatName.RECONCILE, defaults={"at": timezone.now(), "pid": os.getpid()}
    )


def supervise_run(run_key: int) -> None:
    """Repair one run, if it needs it."""
    run = Run.objects.select_related("pipeline").filter(pk=run_key).first()
    if run is None:
        return
    owner = owner_of(run_directory(run))
    found = _looked_at(run, owner)
    if owner is not None and run.driver_due_at is not None:  # it came up late, but not too late
        waits = Run.objects.filter(pk=run.pk, driver_due_at=run.driver_due_at)
        waits.update(driver_due_at=None, driver_waits_since=None, version=F("version") + 1)
    match needed_repair(run, timezone.now(), owner, found):
        case Repair.START:
            _start(run)
        case Repair.CLOSE_AS_CANCELED:
            _close(run, JobStatus.CANCELED, "Canceled; its driver was gone already.")
        case Repair.GIVE_UP:
            _close(run, JobStatus.FAILED, _why_given_up(run))
        case Repair.KILL:
            _kill(run, owner)
        case Repair.REPLACE:
            _replace(run, owner, found)
        case Repair.WAIT:
            _wait(run)
        case Repair.NONE:
            return


def needed_repair(
    run: Run, now: datetime, owner: Owner | None = None, found: Lives | Silent | Hung = ALIVE
) -> Repair:
    """Decides what a run needs now.

    1. A living driver is left alone, unless it overstays or hangs. 2. An ended journal is
    final. 3. A driver that was just launched gets time. 4. Then a dead driver is replaced or given
    up. `owner` is the driver, `found` what its signs of life say.
    """
    if owner is not None and _overstays(run, now):
        return Repair.KILL
    if owner is not None and not isinstance(found, Hung):
        return Repair.NONE
    if isinstance(last_event(run_directory(run).journal_file), RunEnded):
        return Repair.NONE
    if owner is not None:
        return Repair.REPLACE
    if _is_starting(run, now):
        return Repair.NONE
    if run.desired == DesiredState.STOPPED:
        return Repair.CLOSE_AS_CANCELED
    if _starts_in_row(run) >= settings.DRIVER_STARTS_MAX:
        return Repair.GIVE_UP
    return Repair.START if now >= _next_start_at(run, now) else Repair.WAIT


def _looked_at(run: Run, owner: Owner | None) -> Lives | Silent | Hung:
    """Returns what its signs of life say; shows a silence on its page until that ends."""
    found = ALIVE if owner is None or run.is_terminal else watches.look(run, owner)
    silence = silence_of(found) if isinstance(found, Silent) else ""
    if run.driver_silence != silence:
        run.driver_silence = silence
        Run.objects.filter(pk=run.pk).update(driver_silence=silence, version=F("version") + 1)
    return found


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
    """Returns the number of drivers started since the run last made progress."""
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
    # A clock that was set back must not make the run wait until it has caught up.
    due = min(run.driver_started_at + wait, now + wait)
    return due if run.driver_due_at is None else min(due, run.driver_due_at)


def _wait(run: Run) -> None:
    """Shows until when it waits; a person may end the wait. Writes nothing again meanwhile."""
    if run.driver_due_at is not None:
        return
    now = timezone.now()
    unchanged = Run.objects.filter(pk=run.pk, driver_start_count=run.driver_start_count)
    unchanged.filter(driver_due_at=None).update(
        driver_due_at=_next_start_at(run, now), driver_waits_since=now, version=F("version") + 1
    )


def _waited_ms(run: Run) -> float:
    if run.driver_waits_since is None:
        return 0.0
    return max(0.0, (timezone.now() - run.driver_waits_since) / timedelta(milliseconds=1))


def _start(run: Run, why: str = "The driver is gone") -> None:
    """1. Win the right to start. 2. Clear away what the dead driver left. 3. Start."""
    starts = _starts_in_row(run) + 1
    unchanged = Run.objects.filter(
        pk=run.pk, driver_start_count=run.driver_start_count, desired=DesiredState.RUNNING
    )
    won = unchanged.update(
        driver_start_count=F("driver_start_count") + 1,
        driver_starts_in_row=starts,
        driver_started_at=timezone.now(),
        driver_note=_start_note(run, why, starts),
        driver_due_at=None,
        driver_waits_since=None,
        launched_pid=None,
        launched_process_started_at=None,
        version=F("version") + 1,
    )
    if not won:
        return
    launcher.kill_driver_tree(run)
    try:
        driver = launcher.start_driver(run, waited_ms=_waited_ms(run))
    except (OSError, Rejected, psutil.Error) as error:
        _note(run, f"A driver could not be started: {error}")
        raise
    Run.objects.filter(pk=run.pk).update(
        launched_pid=driver.pid, launched_process_started_at=began_after_boot_s(driver.pid)
    )
    Request.objects.filter(run=run, kind__in=STARTS, phase=RequestPhase.PENDING).update(
        phase=RequestPhase.DELIVERED, delivered_at=timezone.now()
    )


def _start_note(run: Run, why: str, starts: int) -> str:
    if run.driver_start_count == 0:
        return "Its driver is starting."
    words = launcher.last_log_line(run_directory(run))
    said = f" The last line of its log: {words}" if words else ""
    return (
        f"{why}; another one is starting from the latest checkpoint (start {starts}"
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
    Run.objects.filter(pk=run.pk).update(driver_due_at=None, driver_waits_since=None)
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


def _kill(run: Run, owner: Owner | None) -> None:
    if owner is not None:
        lease, how = _taken_from(run, owner)
        lease.close()
        _note(run, f"The driver (pid {owner.pid}) did not end when asked to and {how}.")
    launcher.kill_driver_tree(run)


def _replace(run: Run, owner: Owner | None, found: Lives | Silent | Hung) -> None:
    """1. Take the run away from the driver that hangs. 2. Say so in the journal, in a driver's
    place. 3. Start another one.
    """
    if owner is None or not isinstance(found, Hung):
        return
    directory, run_id = run_directory(run), RunId(run.run_id)
    try:
        lease, how = _taken_from(run, owner)
    except LeaseHeld:
        return  # another worker was faster
    why = (
        f"The driver (pid {owner.pid} on {owner.host}) had {found.symptom.value} for"
        f" {age(found.for_ms)} ({age(found.limit_ms)} are allowed, see heartbeat.driver-timeout),"
        f" and {how}"
    )
    event = DriverReplaced(
        pid=owner.pid,
        host=owner.host,
        silent_ms=found.for_ms,
        reason=f"{why}.",
        was_killed=how == KILLED,
    )
    with lease, JournalWriter(directory, run_id, WallClock(), announce_nothing) as journal:
        journal.append(event, lease.attempts_so_far())
    _forget_launch(run)
    if needed_repair(run, timezone.now()) is Repair.START:
        _start(run, why)


def _taken_from(run: Run, owner: Owner) -> tuple[Lease, str]:
    """Returns the lease, and what became of its owner. The fence holds even if the signal fails.

    Raises LeaseHeld when the run has another owner by now.
    """
    is_gone = launcher.kill_driver(owner)
    return Lease.take_over(run_directory(run), owner), KILLED if is_gone else FENCED


def _forget_launch(run: Run) -> None:
    """Otherwise a process that cannot be ended would count as a driver that starts."""
    run.launched_pid = run.launched_process_started_at = None
    Run.objects.filter(pk=run.pk, driver_start_count=run.driver_start_count).update(
        launched_pid=None, launched_process_started_at=None
    )


def _note(run: Run, sentence: str) -> None:
    Run.objects.filter(pk=run.pk).update(driver_note=sentence, version=F("version") + 1)
