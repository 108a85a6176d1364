"""Causes the faults of a schedule for real, and says which of them are possible here.

Django has to be loaded in the environment of a separate installation.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from bench.drill.flow import CLOCK
from bench.drill.staging import Servers, Staged
from bench.soak import flow, network
from bench.soak.changes import CHANGES_MADE
from bench.soak.disks import (
    DISK,
    OF_FILES,
    OF_FLUSHES,
    ON_DISK,
    ON_SMALL_DISK,
    why_no_disk,
    why_no_strace,
)
from bench.soak.fault_context import FaultContext
from bench.soak.kills import KILLS
from bench.soak.schedule import Fault, Planned
from bench.soak.servers import OF_PACKETS, OF_SERVERS, servers_late

IN_OBJECTS = flow.COUNTS_POSTGRES
"""The pipeline whose checkpoints are in an object store."""

STEPS_S = (-3600, -600, -60, 60, 3600)
NO_SPARK = "drivers host their slots themselves; --spark has them in Spark"
NOT_USED = "no chosen pipeline uses it"


def clock_step(context: FaultContext) -> None:
    """Steps the clock of the pipeline's driver and slots, not that of the control plane."""
    lever = context.staged.place / CLOCK
    _put(lever, context.rng.choice(STEPS_S))
    time.sleep(context.length_s)
    _put(lever, 0)


def _put(lever: Path, ahead_s: int) -> None:
    """Replaces the lever atomically, because the processes read it all the time."""
    new = lever.with_suffix(".new")
    new.write_text(str(ahead_s))
    os.replace(new, lever)


DO: Mapping[Fault, Callable[[FaultContext], None]] = {
    **KILLS,
    **{fault: do for faults in OF_SERVERS.values() for fault, do in faults.items()},
    **OF_PACKETS,
    **ON_SMALL_DISK,
    **OF_FLUSHES,
    **OF_FILES,
    **CHANGES_MADE,
    Fault.SERVERS_LATE: servers_late,
    Fault.CLOCK_STEP: clock_step,
}

SHARED = frozenset(
    {
        Fault.WORKER_KILLED,
        Fault.WEB_KILLED,
        Fault.BEAT_KILLED,
        Fault.PROJECTOR_KILLED,
        Fault.BROKER_KILLED,
        Fault.BROKER_FLUSHED,
        Fault.ALL_KILLED,
        Fault.SERVERS_LATE,
        *(fault for faults in OF_SERVERS.values() for fault in faults),
        *OF_PACKETS,
    }
    - {Fault.SLOT_CUT_OFF, Fault.RECORD_POISONED}
)
"""Faults that hit all pipelines, whichever is the target."""

EXCHANGING = (flow.WINDOWS_FILES, flow.FILES_FILES, flow.COUNTS_POSTGRES, flow.DOCUMENTS_FILES)
"""Pipelines with an operator of several inputs, which aligns."""

REWOUND = (flow.REDIS_POSTGRES, flow.WINDOWS_FILES, flow.FILES_FILES)
"""Pipelines with checkpoints on a disk, whose sinks can set aside what they have committed since.
Kafka keeps what is published, so a return to an older checkpoint publishes it again."""

FROM_REDIS = (flow.WINDOWS_FILES, flow.COUNTS_POSTGRES, *flow.PARALLEL)

ONLY: Mapping[Fault, tuple[str, ...]] = {
    **dict.fromkeys(ON_SMALL_DISK, (ON_DISK,)),
    **dict.fromkeys(OF_SERVERS["objects"], (IN_OBJECTS,)),
    Fault.SLOT_KILLED_ALIGNING: EXCHANGING,
    Fault.CHECKPOINT_DAMAGED: REWOUND,
    Fault.RECORD_POISONED: FROM_REDIS,
    Fault.PARTITION_ADDED: (flow.KAFKA_POSTGRES,),
}
"""The pipelines that a fault may happen to, if they are not all."""


def do(planned: Planned, staged: Staged, seed: int) -> None:
    """Causes the fault. Raises Rejected, with the reason, if that is not possible."""
    rng = Random(f"{seed} {planned.at_s} {planned.fault}")
    DO[planned.fault](FaultContext(staged, planned.length_s, rng))


def targets(
    pipelines: Sequence[str], servers: Servers, left_out: dict[str, str], *, has_spark: bool
) -> dict[Fault, Sequence[str]]:
    """Returns the faults that are possible here and their pipelines.

    Adds the other faults to `left_out`, with the reason.
    """
    why_not = _why_not(pipelines, servers, has_spark=has_spark)
    found = dict[Fault, Sequence[str]]()
    for fault in Fault:
        among = [each for each in pipelines if each in ONLY.get(fault, pipelines)]
        if why := why_not.get(fault) or ("" if among else NOT_USED):
            left_out[str(fault)] = why
        else:
            found[fault] = among[:1] if fault in SHARED else among
    return found


def _why_not(pipelines: Sequence[str], servers: Servers, *, has_spark: bool) -> dict[Fault, str]:
    """Returns {fault: why this machine cannot have it}; an empty text if it can."""
    found = {Fault.EXECUTOR_KILLED: "" if has_spark else NO_SPARK}
    for server, of_server in OF_SERVERS.items():
        why = "" if getattr(servers, server) else servers.missing.get(server, NOT_USED)
        found |= dict.fromkeys(of_server, why)
    found |= dict.fromkeys(OF_PACKETS, network.why_not())
    found |= dict.fromkeys(ON_SMALL_DISK, why_no_disk(pipelines))
    found |= dict.fromkeys(OF_FLUSHES, why_no_strace())
    return found


def checkpoints_of(
    pipeline: str, place: Path, servers: Servers, left_out: Mapping[str, str]
) -> dict[str, str]:
    """Returns the setting for the place of the pipeline's checkpoints, if it is a special one."""
    setting = "execution.checkpointing.dir"
    if pipeline == ON_DISK and Fault.DISK_FULL not in left_out:
        return {setting: f"{place}/{DISK}"}
    if pipeline == IN_OBJECTS and servers.objects is not None:
        return {setting: servers.objects.new_root()}
    return {}
