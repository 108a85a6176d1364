"""How long a recovery point can be restored, as far as anything can be known of that."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    until_ms: int  # since 1970
    reason: str  # one sentence


@dataclass(frozen=True, slots=True)
class ShelfLife:
    """`problems`: why it cannot be restored now, one sentence each. `limits`: the soonest first.

    `unknown`: what could not be found out, one sentence each.
    """

    problems: list[str]
    limits: list[Limit]
    unknown: list[str]
