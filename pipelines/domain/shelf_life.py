"""How long a recovery point can be restored, as far as that can be known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    until_ms: int  # since the epoch
    reason: str  # one sentence


@dataclass(frozen=True, slots=True)
class ShelfLife:
    """`problems`: why it cannot be restored now, one sentence each. `limits`: soonest first.

    `unknown`: what could not be determined, one sentence each.
    """

    problems: list[str]
    limits: list[Limit]
    unknown: list[str]
