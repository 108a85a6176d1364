"""Decides when each fault happens, and to which target. Pure: a seed always gives one schedule.

A schedule is made of rounds. Every kind of fault comes once in each round, and each round has its
own order. So no kind comes a third time before every other one has come. Faults that last for
minutes are not in the rounds: in a long soak one of them comes every ten minutes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

QUIET_S = (2.0, 6.0)
"""The time between two faults: some faults hit recovered pipelines, others hit a recovery."""

LONG_EVERY_S = 600.0
"""About one long fault comes in so many seconds, so that recoveries fit in between."""

LONG_FROM_S = 1200.0
"""No long fault comes in a soak that is shorter than this."""


class Fault(StrEnum):
    SLOT_KILLED = "slot-killed"
    SLOT_KILLED_ALIGNING = "slot-killed-aligning"
    SLOT_KILLED_CUTTING = "slot-killed-cutting"
    SLOT_KILLED_UPLOADING = "slot-killed-uploading"
    SLOT_KILLED_UPLOADED = "slot-killed-uploaded"
    SLOT_KILLED_COMMITTING = "slot-killed-committing"
    SLOT_KILLED_COMMITTED = "slot-killed-committed"
    SLOT_KILLED_RESTORING = "slot-killed-restoring"
    SLOT_KILLED_OPENED = "slot-killed-opened"
    SLOT_KILLED_RESTORED = "slot-killed-restored"
    DRIVER_KILLED = "driver-killed"
    DRIVER_KILLED_ACKNOWLEDGED = "driver-killed-acknowledged"
    DRIVER_KILLED_PUBLISHED = "driver-killed-published"
    DRIVER_KILLED_RESTARTING = "driver-killed-restarting"
    DRIVER_KILLED_REWINDING = "driver-killed-rewinding"
    DRIVER_KILLED_REWOUND = "driver-killed-rewound"
    EXECUTOR_KILLED = "executor-killed"
    WORKER_KILLED = "worker-killed"
    WEB_KILLED = "web-server-killed"
    BEAT_KILLED = "beat-killed"
    PROJECTOR_KILLED = "projector-killed"
    BROKER_KILLED = "broker-killed"
    BROKER_FLUSHED = "broker-flushed"
    ALL_KILLED = "all-killed"
    SLOT_STOPPED = "slot-stopped"
    REDIS_AWAY = "redis-away"
    POSTGRES_AWAY = "postgres-away"
    KAFKA_AWAY = "kafka-away"
    REDIS_HUNG = "redis-hung"
    POSTGRES_HUNG = "postgres-hung"
    KAFKA_HUNG = "kafka-hung"
    REDIS_REFUSING = "redis-refusing"
    POSTGRES_REFUSING = "postgres-refusing"
    KAFKA_REFUSING = "kafka-refusing"
    PREPARED_EXHAUSTED = "prepared-transactions-exhausted"
    SERVERS_LATE = "servers-late"
    OBJECTS_AWAY = "object-store-away"
    OBJECTS_FAULTY = "object-store-faulty"
    OBJECTS_SLOW = "object-store-slow"
    OBJECTS_DENIED = "object-store-denied"
    SERVERS_CUT_OFF = "servers-cut-off"
    SLOT_CUT_OFF = "slot-cut-off"
    BAD_LINES = "bad-lines"
    DISK_FULL = "disk-full"
    DISK_READ_ONLY = "disk-read-only"
    DISK_SLOW = "disk-slow"
    DISK_FAILING = "disk-failing"
    SLOT_WRITES_NOTHING = "slot-writes-nothing"
    UPLOADS_SLOW = "uploads-slow"
    CHECKPOINT_DAMAGED = "checkpoint-damaged"
    CLOCK_STEP = "clock-step"
    RECORD_POISONED = "record-poisoned"
    PARTITION_ADDED = "partition-added"
    SAVEPOINT = "savepoint"
    STOP_AND_RESTORE = "stop-and-restore"
    RESCALE = "rescale"
    SETTINGS = "settings"
    CODE = "code"
    REDIS_AWAY_LONG = "redis-away-long"
    POSTGRES_AWAY_LONG = "postgres-away-long"
    KAFKA_AWAY_LONG = "kafka-away-long"
    OBJECTS_AWAY_LONG = "object-store-away-long"
    BAD_LINES_LONG = "bad-lines-long"
    DISK_FULL_LONG = "disk-full-long"


LONG: Mapping[Fault, Fault] = {
    Fault.REDIS_AWAY_LONG: Fault.REDIS_AWAY,
    Fault.POSTGRES_AWAY_LONG: Fault.POSTGRES_AWAY,
    Fault.KAFKA_AWAY_LONG: Fault.KAFKA_AWAY,
    Fault.OBJECTS_AWAY_LONG: Fault.OBJECTS_AWAY,
    Fault.BAD_LINES_LONG: Fault.BAD_LINES,
    Fault.DISK_FULL_LONG: Fault.DISK_FULL,
}
"""Faults that last for minutes, and the short fault that each is otherwise the same as."""

DOWN_S = (0.5, 8.0)
"""How long a process of the control plane is down before it starts again."""

LENGTHS_S: Mapping[Fault, tuple[float, float]] = {
    Fault.WEB_KILLED: DOWN_S,
    Fault.BEAT_KILLED: DOWN_S,
    Fault.PROJECTOR_KILLED: DOWN_S,
    Fault.BROKER_KILLED: DOWN_S,
    Fault.ALL_KILLED: DOWN_S,
    Fault.SLOT_STOPPED: (1.0, 9.0),  # heartbeat.timeout is 5 s: some stops are noticed
    Fault.REDIS_AWAY: (0.5, 6.0),
    Fault.POSTGRES_AWAY: (0.5, 6.0),
    Fault.KAFKA_AWAY: (0.5, 6.0),
    Fault.REDIS_HUNG: (1.0, 12.0),  # beyond the 5 s that a client waits for an answer
    Fault.POSTGRES_HUNG: (1.0, 12.0),
    Fault.KAFKA_HUNG: (1.0, 12.0),
    Fault.REDIS_REFUSING: (1.0, 8.0),
    Fault.POSTGRES_REFUSING: (1.0, 8.0),
    Fault.KAFKA_REFUSING: (1.0, 8.0),
    Fault.PREPARED_EXHAUSTED: (1.0, 8.0),
    Fault.SERVERS_LATE: (2.0, 12.0),
    Fault.OBJECTS_AWAY: (0.5, 8.0),
    Fault.OBJECTS_FAULTY: (2.0, 12.0),
    Fault.OBJECTS_SLOW: (2.0, 12.0),  # a checkpoint gives up after 10 s
    Fault.OBJECTS_DENIED: (1.0, 8.0),
    Fault.SERVERS_CUT_OFF: (1.0, 12.0),
    Fault.SLOT_CUT_OFF: (1.0, 12.0),
    Fault.BAD_LINES: (3.0, 15.0),
    Fault.DISK_FULL: (1.0, 6.0),
    Fault.DISK_READ_ONLY: (1.0, 6.0),
    Fault.DISK_SLOW: (2.0, 15.0),
    Fault.DISK_FAILING: (1.0, 8.0),
    Fault.SLOT_WRITES_NOTHING: (1.0, 8.0),
    Fault.UPLOADS_SLOW: (2.0, 12.0),
    Fault.CLOCK_STEP: (2.0, 8.0),
    **dict.fromkeys(LONG, (60.0, 180.0)),
}
"""How long a fault lasts; faults that are not here happen at one moment."""


@dataclass(frozen=True, slots=True)
class Planned:
    at_s: float  # from the moment at which the first fault could come
    fault: Fault
    target: str  # the name of a pipeline
    length_s: float


def lasting_at_most(seconds: float, kinds: Collection[str]) -> list[Fault]:
    """Returns those of the `kinds` that fit into a soak of that length."""
    is_long = seconds >= LONG_FROM_S
    return [fault for fault in Fault if fault in kinds and (is_long or fault not in LONG)]


def schedule(
    seed: int, seconds: float, targets: Mapping[Fault, Sequence[str]]
) -> tuple[Planned, ...]:
    """`targets` is {fault: the pipelines that it may happen to}; only these faults come."""
    rng, planned, at_s, long_at_s = Random(seed), list[Planned](), 0.0, LONG_EVERY_S
    short = _rounds(rng, [fault for fault in targets if fault not in LONG])
    long = _rounds(rng, [fault for fault in targets if fault in LONG])
    while fault := (next(long, None) if at_s >= long_at_s else None) or next(short, None):
        at_s += rng.uniform(*QUIET_S)
        length_s = rng.uniform(*LENGTHS_S.get(fault, (0.0, 0.0)))
        target = rng.choice(sorted(targets[fault]))
        if at_s + length_s > seconds:
            break
        planned.append(Planned(round(at_s, 1), fault, target, round(length_s, 1)))
        at_s += length_s
        if fault in LONG:
            long_at_s = at_s + LONG_EVERY_S
    return tuple(planned)


def _rounds(rng: Random, faults: Sequence[Fault]) -> Iterator[Fault]:
    while faults:
        yield from rng.sample(sorted(faults), len(faults))
