"""Decides which incidents a pipeline has: when one opens, continues, and is over. Pure.

An incident belongs to one cause. It opens with its first sign and counts the later ones. It stays
open until the pipeline has shown that it works: `CALM_CHECKPOINTS` checkpoints completed after the
last sign, or `CALM_S` of running where a run takes no checkpoints by itself. So a failure that
comes back every minute is one incident with a count, and not many short ones.

While an incident of a failure is open, clocks that run late are its consequence: they open none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ftdash.incidents.causes import OF_FAILURES, Cause

CALM_CHECKPOINTS = 3
CALM_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A failure at a moment, or a condition that is so now (`stands`). Times are in seconds."""

    cause: Cause
    text: str
    at_s: float
    stands: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An incident that is not over. `count` is the number of its signs.

    A sign that stands counts once, or not yet if a failure will report the same.
    """

    cause: Cause
    text: str  # of the newest sign
    opened_s: float
    last_s: float  # the newest sign, or when it was last seen to stand
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The present condition of the pipeline.

    `completed_s` are the times when its newest checkpoints completed; at most `CALM_CHECKPOINTS`
    are needed. `is_periodic` means that it takes them by itself.
    """

    now_s: float
    is_running: bool = False
    is_finished: bool = False  # it has read all its input
    is_canceled: bool = False  # a person stopped it
    is_periodic: bool = True
    running_since_s: float | None = None
    completed_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    incident: Open
    because: str


@dataclass(frozen=True, slots=True)
class Round:
    """`open` are the incidents after it; those that were open before it come first, in order."""

    open: list[Open]
    closed: list[Closed]


def judge(open_before: Sequence[Open], signs: Iterable[Sign], health: Health) -> Round:
    """Judges one round. `signs` are the new failures, oldest first, and what stands now."""
    found = {incident.cause: incident for incident in open_before}
    all_signs = list(signs)
    for sign in sorted(all_signs, key=lambda sign: sign.stands):  # failures first
        if _is_consequence(sign, found):
            continue
        found[sign.cause] = _with(found.get(sign.cause), sign)
    present = {sign.cause for sign in all_signs if sign.stands}
    still_open: list[Open] = []
    closed: list[Closed] = []
    for incident in found.values():
        because = None if incident.cause in present else _over_because(incident, health)
        if because is None:
            still_open.append(incident)
        else:
            closed.append(Closed(incident, because))
    return Round(still_open, closed)


def _is_consequence(sign: Sign, found: dict[Cause, Open]) -> bool:
    if not sign.stands or sign.cause in found:
        return False
    return any(cause in OF_FAILURES for cause in found)


def _with(known: Open | None, sign: Sign) -> Open:
    if known is None:
        is_counted = not (sign.stands and sign.cause in OF_FAILURES)  # else its failure counts
        return Open(
            cause=sign.cause,
            text=sign.text,
            opened_s=sign.at_s,
            last_s=sign.at_s,
            count=int(is_counted),
        )
    count = known.count + (not sign.stands)
    return replace(known, text=sign.text, last_s=max(known.last_s, sign.at_s), count=count)


def _over_because(incident: Open, health: Health) -> str | None:
    """Returns None if the incident is not over."""
    if health.is_canceled:
        return "The pipeline was stopped."
    if health.is_finished:
        return "The run has finished."
    if not health.is_running:
        return None
    if health.is_periodic:
        calm = sum(at_s > incident.last_s for at_s in health.completed_s)
        if calm < CALM_CHECKPOINTS:
            return None
        return f"{CALM_CHECKPOINTS} checkpoints have completed since."
    since_s = max(incident.last_s, health.running_since_s or incident.last_s)
    if health.now_s - since_s < CALM_S:
        return None
    return f"It has run for {CALM_S:.0f} s since."
