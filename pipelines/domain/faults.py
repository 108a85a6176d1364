"""Faults on purpose: at which named point of the protocol a fault hits a process, and how.

For tests, and for pipelines whose owner allows it. The setting `testing.faults` has a plan: a list
of faults, separated by semicolons:

    kill uploading slot=1 nth=2; kill published; fail restoring attempt=2

Without `slot`, the fault hits any slot. `attempt` and `nth`, both 1 by default, say in which
attempt and at which occurrence.
"""

from enum import StrEnum

import msgspec

from pipelines.domain.ids import Attempt

PERMISSION = "FTDASH_ALLOW_FAULTS"
"""Environment variable of a driver whose runs may be hit on purpose; 1 allows it."""


class FaultPoint(StrEnum):
    """Where a fault can hit a run, in the order of a checkpoint's life and then of a recovery's."""

    ALIGNING = "aligning"  # an input is held back for a barrier
    CUTTING = "cutting"  # the barrier has been passed on, the state is not cut yet
    UPLOADING = "uploading"  # the state is cut, nothing is written
    UPLOADED = "uploaded"  # every file is durable, the acknowledgement is not sent
    ACKNOWLEDGED = "acknowledged"  # driver: all subtasks have acknowledged, there is no manifest
    PUBLISHED = "published"  # driver: the manifest is durable, no subtask knows
    COMMITTING = "committing"  # a subtask was asked to commit and has not
    COMMITTED = "committed"  # a subtask has committed and has not reported it
    RESTARTING = "restarting"  # driver: the attempt is fenced, no starting point is chosen
    REWINDING = "rewinding"  # driver: the starting point is chosen, no sink is rewound
    REWOUND = "rewound"  # driver: sinks are rewound, no slot is started
    RESTORING = "restoring"  # a slot knows what to restore and has not begun
    OPENED = "opened"  # a subtask has its state, and has committed the point's prepared output
    RESTORED = "restored"  # a slot has restored and has not reported it


class FaultAction(StrEnum):
    KILL = "kill"  # SIGKILL to the own process
    STOP = "stop"  # SIGSTOP: the process freezes until it is continued
    FAIL = "fail"  # an exception that names the point
    SLOW = "slow"  # a second passes


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: FaultAction
    point: FaultPoint
    attempt: Attempt = Attempt(1)
    nth: int = 1
    slot: int | None = None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Raises ValueError that says what was expected."""
    return tuple(_fault(part.split()) for part in text.split(";") if part.strip())


def _fault(words: list[str]) -> Fault:
    try:
        action, point, *options = words
        given = dict(option.split("=", 1) for option in options)
        numbers = {name: int(value) for name, value in given.items()}
        return msgspec.convert({"action": action, "point": point, **numbers}, Fault)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(
            f"expected faults such as 'kill uploading slot=1 nth=2', not {' '.join(words)!r}"
        ) from error
