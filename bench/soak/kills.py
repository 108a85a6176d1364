"""Kills and stops processes of pipelines and of the control plane."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

import psutil
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from bench.drill.staging import Installation
from bench.soak.fault_context import ENDED_WITHIN_S, UNALIGNED, FaultContext, request_and_wait
from bench.soak.measuring import PARTS
from bench.soak.schedule import Fault
from ftdash.embedded.installation import own_redis
from ftdash.jobs.models import Run
from pipelines.domain.commands import KillDriver, KillSlot
from pipelines.domain.errors import Rejected
from pipelines.domain.status import DriverKillMoment, KillMoment

COMES_WITHIN_S = 20.0
"""A moment of a checkpoint comes with the next one; a kill whose moment does not come is undone."""

PAUSE_S, TRIES = 0.5, 60

IN_RECOVERY = (
    DriverKillMoment.RESTARTING,
    DriverKillMoment.REWINDING,
    DriverKillMoment.REWOUND,
)


def slot_killed(context: FaultContext) -> None:
    context.slot.kill()


def slot_killed_at(moment: KillMoment, context: FaultContext) -> None:
    """Kills a slot, or its replacement, when it reaches the moment."""
    if moment is KillMoment.ALIGNING and context.staged.run.settings.get(UNALIGNED) == "true":
        raise Rejected("nothing aligns: its checkpoints are unaligned at present")
    slot = _living_slot(context)
    request_and_wait(context.staged, KillSlot(slot=slot, moment=moment, within_s=COMES_WITHIN_S))


def _living_slot(context: FaultContext) -> int:
    number = context.slot_number
    context.staged.slot(number)
    return number


def slot_stopped(context: FaultContext) -> None:
    """Stops a slot; if `heartbeat.timeout` passes, the run continues, and it wakes as a zombie."""
    slot = context.slot
    slot.suspend()
    time.sleep(context.length_s)
    with suppress(psutil.NoSuchProcess):
        slot.resume()


def driver_killed(context: FaultContext) -> None:
    context.staged.wait(lambda run: run.driver_pid is not None)
    with suppress(psutil.NoSuchProcess):
        context.staged.kill_driver()


def driver_killed_at(moment: DriverKillMoment, context: FaultContext) -> None:
    """Kills the driver when it reaches the moment; a killed slot causes the recovery for it."""
    slot = _living_slot(context) if moment in IN_RECOVERY else None
    request_and_wait(context.staged, KillDriver(moment=moment, within_s=COMES_WITHIN_S, slot=slot))


def executor_killed(context: FaultContext) -> None:
    """Kills the Java process in which Spark runs the slots."""
    context.staged.wait(lambda run: run.status == "RUNNING" and run.driver_pid is not None)
    driver = context.staged.run.driver_pid
    found = _with_children([driver] if driver else [], lambda each: each.name() == "java")
    if not found:
        raise Rejected("the driver has no Java process at the moment")
    _kill(found)


def worker_killed(context: FaultContext) -> None:
    """Kills only the worker and its pool; the drivers are its children too, and survive."""
    supervisor = context.staged.site.supervisor
    family = _with_children([supervisor.pid_of("worker")], lambda each: "celery" in each.cmdline())
    _kill(family)
    supervisor.revive()


def part_killed(part: str, context: FaultContext) -> None:
    """Kills a process of the control plane, which is down for a while."""
    _kill_for(context, _with_children([context.staged.site.supervisor.pid_of(part)]))


def all_killed(context: FaultContext) -> None:
    """Kills the control plane and all pipelines at once; the servers at their ends live on."""
    _kill_for(context, _all_processes(context.staged.site))


def broker_flushed(context: FaultContext) -> None:
    """Deletes all keys of the control plane's own Redis, with the waiting tasks."""
    address = own_redis()
    if address is None:
        raise Rejected("the control plane has no Redis of its own")
    patient = Retry(ConstantBackoff(PAUSE_S), TRIES)  # it may just have been killed and started
    with redis.Redis.from_url(address.url, retry=patient) as client:
        client.flushall()


def _all_processes(site: Installation) -> set[psutil.Process]:
    pids = [site.supervisor.pid_of(part) for part in PARTS]
    for run in Run.objects.filter(ended_at=None):
        pids += [each["pid"] for each in run.slots.values()]
        pids += [] if run.driver_pid is None else [run.driver_pid]
    return _with_children(pids)


def _with_children(
    pids: Collection[int], is_meant: Callable[[psutil.Process], bool] = lambda each: True
) -> set[psutil.Process]:
    """Returns these processes and all below them that are meant; one that has ended is left out."""
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    return {each for each in found if _is(each, is_meant)}


def _is(process: psutil.Process, meant: Callable[[psutil.Process], bool]) -> bool:
    with suppress(psutil.NoSuchProcess):
        return meant(process)
    return False


def _kill_for(context: FaultContext, processes: Collection[psutil.Process]) -> None:
    _kill(processes)
    time.sleep(context.length_s)
    context.staged.site.supervisor.revive()


def _kill(processes: Collection[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(list(processes), timeout=ENDED_WITHIN_S)


KILLS: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.SLOT_KILLED: slot_killed,
    **{
        Fault(f"slot-killed-{moment}"): partial(slot_killed_at, moment)
        for moment in KillMoment
        if moment is not KillMoment.NOW
    },
    Fault.DRIVER_KILLED: driver_killed,
    **{
        Fault(f"driver-killed-{moment}"): partial(driver_killed_at, moment)
        for moment in DriverKillMoment
    },
    Fault.EXECUTOR_KILLED: executor_killed,
    Fault.WORKER_KILLED: worker_killed,
    Fault.WEB_KILLED: partial(part_killed, "web"),
    Fault.BEAT_KILLED: partial(part_killed, "beat"),
    Fault.PROJECTOR_KILLED: partial(part_killed, "projector"),
    Fault.BROKER_KILLED: partial(part_killed, "redis"),
    Fault.BROKER_FLUSHED: broker_flushed,
    Fault.ALL_KILLED: all_killed,
    Fault.SLOT_STOPPED: slot_stopped,
}
