"""Carries out the fault of a game day: through the driver, or from outside on this machine."""

from datetime import timedelta

import msgspec
import psutil
from django.utils import timezone

from ftdash.gameday.models import Fault, GameDay
from ftdash.gameday.processes import identity_of, process_of
from ftdash.jobs import services
from ftdash.jobs.models import Run
from pipelines.domain.errors import Rejected
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.status import KillMoment

THAW_LATER_BY = timedelta(seconds=1)
"""After `heartbeat.timeout`: by then the attempt is over, and what was stopped has to notice."""

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
            _hit(process_of(run.run_id, run.driver_pid, "The driver"), "kill")
        case Fault.FREEZE_SLOT:
            _freeze(day, run)


def effect_after(fault: Fault, run: Run) -> timedelta:
    """How long it takes by design until the driver can know."""
    if fault is not Fault.FREEZE_SLOT:
        return timedelta()
    heartbeat = parse_settings(run.settings_now).heartbeat
    return timedelta(milliseconds=heartbeat.timeout_ms)


def _freeze(day: GameDay, run: Run) -> None:
    slot = run.slots.get(str(day.slot), {})
    process = process_of(run.run_id, slot.get("pid"), f"Slot {day.slot}")
    day.frozen = msgspec.to_builtins(identity_of(process))
    day.thaw_at = timezone.now() + effect_after(Fault.FREEZE_SLOT, run) + THAW_LATER_BY
    day.save(update_fields=["frozen", "thaw_at"])  # first: nobody else knows whom to continue
    _hit(process, "suspend")


def _hit(process: psutil.Process, how: str) -> None:
    try:
        process.kill() if how == "kill" else process.suspend()
    except psutil.NoSuchProcess:
        raise Rejected(f"Process {process.pid} ended before anything was done to it.") from None
