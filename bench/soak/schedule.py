"""Decides when each fault happens, and to which target. Pure: a seed always gives one schedule.

A schedule is made of rounds. Every kind of fault comes once in each round, and each round has its
own order. So no kind comes a third time before every other one has come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

QUIET_S = (2.0, 6.0)
"""The time between two faults: some faults hit recovered pipelines, others hit a recovery."""


class Fault(StrEnum):
    SLOT_KILLED = "slot-killed"
    DRIVER_KILLED = "driver-killed"
    WORKER_KILLED = "worker-killed"
    SLOT_STOPPED = "slot-stopped"
    REDIS_AWAY = "redis-away"
    POSTGRES_AWAY = "postgres-away"
    KAFKA_AWAY = "kafka-away"
    REDIS_HUNG = "redis-hung"
    POSTGRES_HUNG = "postgres-hung"
    KAFKA_HUNG = "kafka-hung"
    OBJECTS_AWAY = "object-store-away"
    OBJECTS_FAULTY = "object-store-faulty"
    OBJECTS_SLOW = "object-store-slow"
    SERVERS_CUT_OFF = "servers-cut-off"
    SLOT_CUT_OFF = "slot-cut-off"
    BAD_LINES = "bad-lines"
    DISK_FULL = "disk-full"
    DISK_READ_ONLY = "disk-read-only"
    DISK_SLOW = "disk-slow"
    CLOCK_STEP = "clock-step"
    SAVEPOINT = "savepoint"
    STOP_AND_RESTORE = "stop-and-restore"
    RESCALE = "rescale"
    SETTINGS = "settings"
    CODE = "code"


LENGTHS_S: Mapping[Fault, tuple[float, float]] = {
    Fault.SLOT_STOPPED: (1.0, 9.0),  # heartbeat.timeout is 5 s: some stops are noticed
    Fault.REDIS_AWAY: (0.5, 6.0),
    Fault.POSTGRES_AWAY: (0.5, 6.0),
    Fault.KAFKA_AWAY: (0.5, 6.0),
    Fault.REDIS_HUNG: (1.0, 12.0),  # beyond the 5 s that a client waits for an answer
    Fault.POSTGRES_HUNG: (1.0, 12.0),
    Fault.KAFKA_HUNG: (1.0, 12.0),
    Fault.OBJECTS_AWAY: (0.5, 8.0),
    Fault.OBJECTS_FAULTY: (2.0, 12.0),
    Fault.OBJECTS_SLOW: (2.0, 12.0),  # a checkpoint gives up after 10 s
    Fault.SERVERS_CUT_OFF: (1.0, 12.0),
    Fault.SLOT_CUT_OFF: (1.0, 12.0),
    Fault.BAD_LINES: (3.0, 15.0),
    Fault.DISK_FULL: (1.0, 6.0),
    Fault.DISK_READ_ONLY: (1.0, 6.0),
    Fault.DISK_SLOW: (2.0, 15.0),
    Fault.CLOCK_STEP: (2.0, 8.0),
}
"""How long a fault lasts; faults that are not here happen at one moment."""


@dataclass(frozen=True, slots=True)
class Planned:
    at_s: float  # from the moment at which the first fault could come
    fault: Fault
    target: str  # the name of a pipeline
    length_s: float


def schedule(
    seed: int, seconds: float, targets: Mapping[Fault, Sequence[str]]
) -> tuple[Planned, ...]:
    """`targets` is {fault: the pipelines that it may happen to}; only these faults come."""
    rng, planned, at_s = Random(seed), list[Planned](), 0.0
    while targets:
        for fault in rng.sample(sorted(targets), len(targets)):
            at_s += rng.uniform(*QUIET_S)
            length_s = rng.uniform(*LENGTHS_S.get(fault, (0.0, 0.0)))
            target = rng.choice(sorted(targets[fault]))
            if at_s + length_s > seconds:
                return tuple(planned)
            planned.append(Planned(round(at_s, 1), fault, target, round(length_s, 1)))
            at_s += length_s
    return tuple(planned)
