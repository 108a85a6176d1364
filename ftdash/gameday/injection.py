"""Carries out the fault of a game day: through the driver, or from outside on this machine."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import psutil
from django.utils import timezone

from ftdash.gameday.models import Fault, GameDay
from ftdash.gameday.processes import forbid_writing, identity_of, process_of
from ftdash.jobs import services
from ftdash.jobs.models import Run
from pipelines.domain.errors import Rejected
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.status import KillMoment

RELEASE_LATER_BY = timedelta(seconds=1)
"""After `heartbeat.timeout`: by then the attempt is over, and what was stopped has to notice."""

FULL_FOR = timedelta(seconds=60)
"""At the longest: until something has failed."""

MOMENTS = {Fault.KILL_SLOT: KillMoment.NOW, Fault.KILL_SLOT_ALIGNING: KillMoment.ALIGNING}


def inject(day: GameDay) -> None:
    """Changes `day` in memory. Raises Rejected if it cannot be done."""
    run, fault = day.run, Fault(day.fault)
    match fault:
        case Fault.KILL_SLOT | Fault.KILL_SLOT_ALIGNING:
            day.request_id = services.kill_slot(
                pipeline=day.pipeline.name,
                slot=day.slot or 0,
                requester=day.requester,
                reason=f"game day {day.pk}: {day.reason}",
                moment=MOMENTS[fault],
            )
        case Fault.KILL_DRIVER:
            _hit(process_of(run.run_id, run.driver_pid, "The driver"), psutil.Process.kill)
        case Fault.FREEZE_SLOT:
            after = effect_after(fault, run) + RELEASE_LATER_BY
            _hold(day, run, psutil.Process.suspend, after)
        case Fault.FULL_DISK:
            _hold(day, run, forbid_writing, FULL_FOR)


def effect_after(fault: Fault, run: Run) -> timedelta:
    """How long it takes by design until the driver can know."""
    if fault is not Fault.FREEZE_SLOT:
        return timedelta()
    heartbeat = parse_settings(run.settings_now).heartbeat
    return timedelta(milliseconds=heartbeat.timeout_ms)


def _hold(
    day: GameDay, run: Run, how: Callable[[psutil.Process], None], release_after: timedelta
) -> None:
    slot = run.slots.get(str(day.slot), {})
    process = process_of(run.run_id, slot.get("pid"), f"Slot {day.slot}")
    day.held = msgspec.to_builtins(identity_of(process))
    day.release_at = timezone.now() + release_after
    day.save(update_fields=["held", "release_at"])  # first: nobody else knows whom to release
    _hit(process, how)


def _hit(process: psutil.Process, how: Callable[[psutil.Process], None]) -> None:
    try:
        how(process)
    except psutil.NoSuchProcess:
        raise Rejected(f"Process {process.pid} ended before anything was done to it.") from None
