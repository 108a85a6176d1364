"""What a seed draws in addition to its dataflow: mode, settings, and which faults strike it.

Half of the seeds leave a given kind of fault out, so that the defects it would hide can show.
Source: Groce et al., "Swarm Testing", 2012.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

from pipelines.domain.ids import Uid
from pipelines.domain.settings.resources import DEBLOATING
from tests.simulation.plans import Plan
from tests.simulation.poison import NO_POISON, Poison, draw_poison

FAULTY_TURNS = 1_500
"""Faults strike in the first turns of a run; then they stop, and the run must end."""

CHECKPOINTING = "execution.checkpointing."
TOLERABLE = CHECKPOINTING + "tolerable-failed-checkpoints"
OVERTAKING = {CHECKPOINTING + "unaligned.enabled": "true"}
_CAP = CHECKPOINTING + "alignment-buffer."
_CAPPED = {_CAP + "max-size-per-channel": "1 kb", _CAP + "max-size-per-subtask": "1 kb"}
AT_LEAST_ONCE, AT_MOST_ONCE = "at least once", "at most once"
CAPPED = ("cap waits", "cap overtakes", "cap aborts")
MODES: dict[str, dict[str, str]] = {
    "aligned": {},
    "unaligned": OVERTAKING,
    "timeout": {**OVERTAKING, CHECKPOINTING + "aligned-checkpoint-timeout": "40 ms"},
    "concurrent": {CHECKPOINTING + "max-concurrent-checkpoints": "3"},
    AT_LEAST_ONCE: {CHECKPOINTING + "mode": "AT_LEAST_ONCE"},
    AT_MOST_ONCE: {CHECKPOINTING + "mode": "AT_MOST_ONCE"},
    "cap waits": {**_CAPPED, _CAP + "when-exceeded": "wait"},
    "cap overtakes": {**_CAPPED, _CAP + "when-exceeded": "unaligned"},
    "cap aborts": {
        **_CAPPED,
        _CAP + "when-exceeded": "abort",
        TOLERABLE: "1000",  # an attempt that this makes fail would only exceed the cap again
    },
}
WITH_QUARANTINE = ("aligned", "concurrent", AT_LEAST_ONCE, "cap waits", "cap aborts")
"""The other modes are refused with a quarantine."""
QUARANTINING = {
    "execution.poison-records.policy": "quarantine",
    "restart-strategy.repeated-failure.min-tries": "2",
    "restart-strategy.repeated-failure.min-duration": "0",
}
POISONED_SHARE = 0.3
GATES_BYTES = (60, 400, 8 << 20)
"""Capacities of channels: from one batch at a time to never full."""

Chances = dict[str, float]
PER_TURN: Chances = {
    "kill a slot": 0.0015,
    "kill the driver": 0.0007,
    "replace the driver": 0.0004,  # the old one lives on, and does not know
    "silence a slot": 0.0007,  # its connection stays open, but passes nothing on
    "stop a slot": 0.0007,  # as SIGSTOP does; it continues later
    "set the wall clock": 0.001,
    "ask for a point": 0.003,
    "kill itself on command": 0.0003,
}
PER_OPERATION: Chances = {
    "kill at a point": 0.001,  # per fault point passed, by slots and by the driver
    "fail the disk": 0.03,
    "fail the world": 0.01,
    "repeat": 0.05,  # an acknowledgement comes twice
}
USUAL: Chances = PER_TURN | PER_OPERATION
NONE: Chances = {}


@dataclass(frozen=True)
class Circumstances:
    mode: str
    settings: dict[str, str]
    chances: Chances
    gate_bytes: int
    slow_vertex: Uid | None
    has_short_timeout: bool  # short timeouts of checkpoints, while faults strike
    poison: Poison = NO_POISON

    def undisturbed(self) -> "Circumstances":
        settings = {k: v for k, v in self.settings.items() if k != CHECKPOINTING + "timeout"}
        return replace(self, settings=settings, chances=NONE, has_short_timeout=False)


def draw_circumstances(rng: random.Random, plan: Plan, chances: Chances) -> Circumstances:
    mode = rng.choice(list(MODES))
    drawn = {kind: chance for kind, chance in chances.items() if rng.random() < 0.5}
    has_short_timeout = bool(chances) and rng.random() < 0.2
    is_capped = mode in CAPPED
    gate_bytes = GATES_BYTES[-1] if is_capped else rng.choice(GATES_BYTES)
    slow = rng.choice(plan.steps) if is_capped or rng.random() < 0.4 else None
    is_poisoned = mode in WITH_QUARANTINE and rng.random() < POISONED_SHARE
    settings = _draw_settings(rng, drawn, has_short_timeout=has_short_timeout) | MODES[mode]
    return Circumstances(
        mode,
        settings | (QUARANTINING if is_poisoned else {}),
        drawn,
        gate_bytes,
        None if slow is None else plan.uid_of(slow),
        has_short_timeout,
        draw_poison(rng, plan) if is_poisoned else NO_POISON,
    )


def _draw_settings(
    rng: random.Random, chances: Chances, *, has_short_timeout: bool
) -> dict[str, str]:
    settings = {
        CHECKPOINTING + "interval": rng.choice(["40 ms", "150 ms", "400 ms"]),
        CHECKPOINTING + "num-retained": rng.choice(["1", "2", "20"]),
        TOLERABLE: rng.choice(["0", "3", "3"]),
        CHECKPOINTING + "incremental": rng.choice(["true", "false"]),
        "state.backend.type": "rocksdb" if rng.random() < ROCKSDB_SHARE else "hashmap",
        "state.backend.rocksdb.memory.fixed-per-slot": "2 mb",
        "pipeline.coalescing.max-rows": rng.choice(["1", "4", "8192"]),
        "pipeline.coalescing.max-wait": rng.choice(["0", "5 ms", "50 ms"]),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    is_silenced = "silence a slot" in chances or "stop a slot" in chances
    settings["heartbeat.interval"] = "100 ms" if is_silenced else "10 min"
    settings["heartbeat.timeout"] = "1500 ms" if is_silenced else "1 h"
    if has_short_timeout:
        settings[CHECKPOINTING + "timeout"] = "200 ms"
    settings[DEBLOATING + "enabled"] = rng.choice(["true", "true", "false"])
    settings[DEBLOATING + "target"] = rng.choice(["10 ms", "500 ms"])
    settings[DEBLOATING + "period"] = rng.choice(["1 ms", "200 ms"])
    return settings


ROCKSDB_SHARE = 0.1


class Dice:
    """Decides if a fault strikes now, and counts those that did."""

    def __init__(self, rng: random.Random, chances: Chances, seen: Counter[str]) -> None:
        self._rng = rng
        self._chances = chances
        self.seen = seen
        self.is_faulty = bool(chances)

    def strikes(self, kind: str) -> bool:
        if not self.is_faulty or self._rng.random() >= self._chances.get(kind, 0.0):
            return False
        self.seen[kind] += 1
        return True
