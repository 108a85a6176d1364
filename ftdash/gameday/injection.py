"""Carries out the fault of a game day: through the driver, or from outside on this machine.

From outside, a process is found by its id, and hit only if it is the expected one. Another process
may have the id by now; a process that a driver has started has the run's id in its environment.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import psutil
from django.utils import timezone

from ftdash.gameday.models import Fault, GameDay
from ftdash.gameday.scoring import EFFECT_WITHIN
from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.requests import services
from ftdash.supervision.launcher import RUN_ID_VARIABLE
from pipelines.bus.lease import Owner, began_after_boot_s
from pipelines.domain.commands import KillDriver, KillSlot, SlowSlot
from pipelines.domain.errors import Rejected
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import DriverKillMoment, KillMoment


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
    """Returns the Celery worker that last did the round over all runs.

    Raises Rejected if there was none, or if its process is on another machine or is not a Celery
    worker.
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
    """Returns when a worker other than the killed one did its round, or None."""
    beat = Heartbeat.objects.filter(name=HeartbeatName.RECONCILE, at__gt=killed_at).first()
    if beat is None or (beat.pid == killed.pid and not _has_successor(killed)):
        return None
    return beat.at


def _has_successor(killed: Owner) -> bool:
    """True if another process has its id now, as in a restarted container."""
    try:
        is_there = psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return is_there and not killed.is_alive


def identity_of(process: psutil.Process) -> Owner:
    """Returns an identity that a later process with the same id does not have."""
    return Owner(
        pid=process.pid,
        process_began_s=began_after_boot_s(process.pid),
        host="",
        acquired_at=0.0,
    )


def forbid_writing(process: psutil.Process) -> None:
    """Keeps all its files from growing: a write fails as on a full disk. Sockets keep working.

    Python ignores the signal that would end the process, and raises an OSError instead.
    """
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))


def release(held: Owner) -> None:
    """Lets the process continue and write again. Harmless if it already does, or is gone."""
    process = held.process()
    if process is None:
        return
    try:
        process.resume()
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    except psutil.NoSuchProcess:
        return


RELEASE_LATER_BY = timedelta(seconds=1)
"""After `heartbeat.timeout`: by then the attempt is over, which the stopped process must notice."""

SLOW_BY = timedelta(seconds=3)
SLOW_FOR = timedelta(seconds=30)
"""Counted from when the next checkpoint is due."""

FULL_FOR = timedelta(seconds=60)
"""At most this long; the fault ends earlier once something has failed."""

MOMENTS = {
    Fault.KILL_SLOT: KillMoment.NOW,
    Fault.KILL_SLOT_ALIGNING: KillMoment.ALIGNING,
    Fault.KILL_SLOT_CUTTING: KillMoment.CUTTING,
    Fault.KILL_SLOT_UPLOADING: KillMoment.UPLOADING,
    Fault.KILL_SLOT_UPLOADED: KillMoment.UPLOADED,
    Fault.KILL_SLOT_COMMITTING: KillMoment.COMMITTING,
    Fault.KILL_SLOT_COMMITTED: KillMoment.COMMITTED,
    Fault.KILL_SLOT_RESTORING: KillMoment.RESTORING,
    Fault.KILL_SLOT_OPENED: KillMoment.OPENED,
    Fault.KILL_SLOT_RESTORED: KillMoment.RESTORED,
}
DRIVER_MOMENTS = {
    Fault.KILL_DRIVER_ACKNOWLEDGED: DriverKillMoment.ACKNOWLEDGED,
    Fault.KILL_DRIVER_PUBLISHED: DriverKillMoment.PUBLISHED,
}
RECOVERY_MOMENTS = {
    Fault.KILL_DRIVER_RESTARTING: DriverKillMoment.RESTARTING,
    Fault.KILL_DRIVER_REWINDING: DriverKillMoment.REWINDING,
    Fault.KILL_DRIVER_REWOUND: DriverKillMoment.REWOUND,
}
"""Moments of the driver, in the recovery that the kill of a slot causes."""

KILLED_TWICE = tuple(fault for fault, moment in MOMENTS.items() if moment.is_of_replacement)
"""Faults that kill the slot and then its replacement."""

ASKED_OF_THE_DRIVER = (*MOMENTS, *DRIVER_MOMENTS, *RECOVERY_MOMENTS, Fault.SLOW_STORAGE)
NEEDS_SLOT = (*MOMENTS, *RECOVERY_MOMENTS, Fault.FREEZE_SLOT, Fault.SLOW_STORAGE, Fault.FULL_DISK)


def inject(day: GameDay) -> None:
    """Changes `day` in memory. Raises Rejected if the fault is not possible."""
    run, fault = day.run, Fault(day.fault)
    if fault in ASKED_OF_THE_DRIVER:
        day.request_id = _ask_driver(day, fault)
        return
    match fault:
        case Fault.KILL_DRIVER:
            _hit(process_of(run.run_id, run.driver_pid, "The driver"), psutil.Process.kill)
        case Fault.KILL_WORKER:
            _kill_worker(day)
        case Fault.FREEZE_SLOT:
            after = effect_after(fault, run) + RELEASE_LATER_BY
            _hold(day, run, psutil.Process.suspend, after)
        case Fault.FULL_DISK:
            _hold(day, run, forbid_writing, FULL_FOR)


def _ask_driver(day: GameDay, fault: Fault) -> str:
    why = f"game day {day.pk}: {day.reason}"
    return services.ask(day.pipeline.name, _command(day, fault), who=day.requester, why=why)


def _command(day: GameDay, fault: Fault) -> KillDriver | SlowSlot | KillSlot:
    slot, within_s = day.slot or 0, effect_within(day).total_seconds()
    if moment := (DRIVER_MOMENTS | RECOVERY_MOMENTS).get(fault):
        return KillDriver(moment=moment, within_s=within_s, slot=day.slot)
    if fault is Fault.SLOW_STORAGE:
        lasts = SLOW_FOR + effect_after(fault, day.run)
        millisecond = timedelta(milliseconds=1)
        return SlowSlot(slot=slot, delay_ms=SLOW_BY // millisecond, for_ms=lasts // millisecond)
    return KillSlot(slot=slot, moment=MOMENTS[fault], within_s=within_s)


def effect_within(day: GameDay) -> timedelta:
    """Returns how long the fault may take to have an effect."""
    return EFFECT_WITHIN + effect_after(Fault(day.fault), day.run)


def effect_after(fault: Fault, run: Run) -> timedelta:
    """Returns how long, by design, it takes until the driver can notice."""
    settings = parse_settings(run.settings_now)
    if fault is Fault.FREEZE_SLOT:
        return timedelta(milliseconds=settings.heartbeat.timeout_ms)
    at_once = (Fault.KILL_SLOT, Fault.KILL_DRIVER, Fault.KILL_WORKER)
    if fault in (*at_once, *KILLED_TWICE, *RECOVERY_MOMENTS):
        return timedelta()
    return timedelta(milliseconds=settings.checkpointing.interval_ms or 0)  # until the next one


def _kill_worker(day: GameDay) -> None:
    """It may be this very process; the next worker to watch carries on."""
    process = watching_worker()
    day.held = msgspec.to_builtins(identity_of(process))
    day.save(update_fields=["held"])
    _hit(process, psutil.Process.kill)


def _hold(
    day: GameDay, run: Run, how: Callable[[psutil.Process], None], release_after: timedelta
) -> None:
    slot = run.slots.get(str(day.slot), {})
    process = process_of(run.run_id, slot.get("pid"), f"Slot {day.slot}")
    day.held = msgspec.to_builtins(identity_of(process))
    day.release_at = timezone.now() + release_after
    day.save(update_fields=["held", "release_at"])  # first, so that other workers can release it
    _hit(process, how)


def _hit(process: psutil.Process, how: Callable[[psutil.Process], None]) -> None:
    try:
        how(process)
    except psutil.NoSuchProcess:
        raise Rejected(f"Process {process.pid} ended before anything was done to it.") from None
