"""When an alert fires and when it clears: two thresholds, and how long each has to hold.

Pure: no clock, no I/O. The evaluator keeps a `Standing` between two readings, passes it in with the
next one, and carries out the effect. Source: the Schmitt trigger; the `for` and `keep_firing_for`
of Prometheus' alerting rules.

    QUIET ── above ──► RISING ── for fire_after_s ──► FIRING ── below ──► FALLING ── for
      ▲◄── not above ────┘                              ▲◄── not below ─────┘   clear_after_s
      └──────────────────────────────────────────────────────────────────────────────┘
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from pipelines.domain.errors import Rejected

DURATION_MAX_S = 7 * 86_400
VALUE_MAX = 1e15
"""A petabyte, or 30 million years: anything larger is a mistake, or cannot be written."""


class Phase(StrEnum):
    QUIET = "QUIET"
    RISING = "RISING"  # above the upper threshold, not for long enough yet
    FIRING = "FIRING"
    FALLING = "FALLING"  # still firing; below the lower threshold, not for long enough yet

    @property
    def is_firing(self) -> bool:
        return self in (Phase.FIRING, Phase.FALLING)


class Absent(Enum):
    """A reading without a number."""

    UNKNOWN = auto()  # not known now: no evidence for anything
    OVER = auto()  # the watched thing is gone: there is nothing to alert about
    UNASKED = auto()  # it is not expected: it cannot be late


Reading = float | Absent


class Effect(Enum):
    NONE = auto()
    FIRED = auto()
    CLEARED = auto()


@dataclass(frozen=True, slots=True)
class Band:
    """Fires above `fire_above` for `fire_after_s`; clears below `clear_below` for `clear_after_s`.

    Between the two, nothing changes. A duration of 0 means at once.
    """

    fire_above: float
    fire_after_s: float
    clear_below: float
    clear_after_s: float

    def check(self) -> None:
        """Raises Rejected if the band would flap or never act."""
        if not self.clear_below <= self.fire_above:
            raise Rejected("An alert has to clear at or below the value at which it fires.")
        if not self.clear_below >= 0:
            raise Rejected("An alert cannot clear below 0: what is watched is never less than 0.")
        if self.fire_above > VALUE_MAX:
            raise Rejected(f"An alert fires above at most {VALUE_MAX:.0e}.")
        if not all(0 <= each <= DURATION_MAX_S for each in (self.fire_after_s, self.clear_after_s)):
            raise Rejected(f"How long a value has to hold is 0 to {DURATION_MAX_S} s.")


@dataclass(frozen=True, slots=True)
class Standing:
    """All state between two readings; `since_s` is when the phase was entered."""

    phase: Phase
    since_s: float


def at_first(now_s: float) -> Standing:
    return Standing(Phase.QUIET, now_s)


def judge(
    band: Band, standing: Standing, reading: Reading, now_s: float
) -> tuple[Standing, Effect]:
    """The standing after a reading taken at `now_s`, and the effect.

    `now_s` is wall time, which a restart of the evaluator does not reset. If the clock is set back,
    the streak restarts, so that it never counts time that has not passed.
    """
    if standing.since_s > now_s:
        standing = Standing(standing.phase, now_s)
    if reading in (Absent.OVER, Absent.UNASKED):
        return at_first(now_s), Effect.CLEARED if standing.phase.is_firing else Effect.NONE
    if standing.phase.is_firing:
        return _while_firing(band, standing, reading, now_s)
    return _while_quiet(band, standing, reading, now_s)


def _while_quiet(
    band: Band, standing: Standing, reading: Reading, now_s: float
) -> tuple[Standing, Effect]:
    if not (isinstance(reading, float) and reading > band.fire_above):
        return _stay(standing, Phase.QUIET, now_s), Effect.NONE
    rising = _stay(standing, Phase.RISING, now_s)
    if now_s - rising.since_s < band.fire_after_s:
        return rising, Effect.NONE
    return Standing(Phase.FIRING, now_s), Effect.FIRED


def _while_firing(
    band: Band, standing: Standing, reading: Reading, now_s: float
) -> tuple[Standing, Effect]:
    if not (isinstance(reading, float) and _is_below(reading, band)):
        return _stay(standing, Phase.FIRING, now_s), Effect.NONE
    falling = _stay(standing, Phase.FALLING, now_s)
    if now_s - falling.since_s < band.clear_after_s:
        return falling, Effect.NONE
    return Standing(Phase.QUIET, now_s), Effect.CLEARED


def _is_below(reading: float, band: Band) -> bool:
    """Nothing is below a lower threshold of 0, so 0 itself clears."""
    return reading < band.clear_below or reading == band.clear_below == 0


def _stay(standing: Standing, phase: Phase, now_s: float) -> Standing:
    """Keeps the standing if its phase is the same; otherwise the phase begins now."""
    return standing if standing.phase is phase else Standing(phase, now_s)
