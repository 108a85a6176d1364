"""Faults on purpose: at which named point of the protocol a process is hit, and how.

For tests, and for pipelines whose owner allows it. A plan is read from the setting
`testing.faults`, one fault after the other, separated by semicolons:

    kill uploading slot=1 nth=2; kill published; fail restoring attempt=2

Without `slot` any slot meets it; `attempt` (1) and `nth` (1) say which attempt and which time.
"""

from enum import StrEnum

import msgspec

from pipelines.domain.ids import Attempt

PERMISSION = "FTDASH_ALLOW_FAULTS"
"""Environment of a driver whose runs may be hit on purpose; set to 1 by whoever starts it."""


class FaultPoint(StrEnum):
    """Where a run can be hit, in the order of a checkpoint's life and then of a recovery's."""

    ALIGNING = "aligning"  # an input is held back for a barrier
    CUTTING = "cutting"  # the barrier has been passed on, the state is not cut yet
    UPLOADING = "uploading"  # the state is cut, nothing is written
    UPLOADED = "uploaded"  # every file is durable, the acknowledgement is not sent
    ACKNOWLEDGED = "acknowledged"  # driver: all have acknowledged, there is no manifest
    PUBLISHED = "published"  # driver: the manifest is durable, nobody knows
    COMMITTING = "committing"  # a subtask was told to commit and has not
    COMMITTED = "committed"  # a subtask has committed and has not said so
    RESTARTING = "restarting"  # driver: the attempt is fenced, nothing is chosen
    REWINDING = "rewinding"  # driver: where to begin is chosen, no sink is rewound
    REWOUND = "rewound"  # driver: sinks are rewound, no slot is started
    RESTORING = "restoring"  # a slot was told what to restore and has not begun
    OPENED = "opened"  # a subtask has its state, and has committed what the point had prepared
    RESTORED = "restored"  # a slot has restored and has not said so


class FaultAction(StrEnum):
    KILL = "kill"  # SIGKILL to the own process
    STOP = "stop"  # SIGSTOP: it lives, and goes on when somebody continues it
    FAIL = "fail"  # an exception that names the point
    SLOW = "slow"  # a second passes


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: FaultAction
    point: FaultPoint
    attempt: Attempt = Attempt(1)
    nth: int = 1
    slot: int | None = None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Raises ValueError saying what was expected."""
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
