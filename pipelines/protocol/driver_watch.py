"""Decides whether a driver is still alive, by how long its signs of life have not moved.

Pure: the host passes in each look, with the clock of the process that looks. The watch compares no
clocks of different processes: a sign contains growing numbers, not times. A gap between two looks
counts for at most half of the timeout. So the first look after the machine slept, or after the
supervision was down, never finds a driver hung.

Source: failure detectors by heartbeats (Chandra and Toueg, 1996). This one may be wrong, so a
driver that is replaced is also killed or fenced.
"""

from dataclasses import dataclass
from enum import Enum

from pipelines.domain.errors import check
from pipelines.domain.run import LONG_STEP_MAX_MS, DriverSign

GAP_SHARE_MAX = 0.5
"""The largest share of the timeout that one gap between two looks can count for."""

SILENCE_SHARE = 0.25
"""A driver that has shown nothing for this share of the timeout is called silent."""


class Symptom(Enum):
    NO_SIGN = "shown no sign of life"
    STANDS_STILL = "shown no progress of its control loop"


@dataclass(frozen=True, slots=True)
class Lives:
    pass


@dataclass(frozen=True, slots=True)
class Silent:
    """Shows nothing for longer than usual; the supervision does nothing about it yet."""

    symptom: Symptom
    for_ms: float
    limit_ms: float  # from here on it counts as hung


@dataclass(frozen=True, slots=True)
class Hung:
    """The supervision has to replace it."""

    symptom: Symptom
    for_ms: float
    limit_ms: float


class DriverWatch:
    """Watches the drivers of one run, one after another.

    Guarantee: `Hung` needs at least two looks after the last that found a move, and at least the
    timeout between them. Needs a monotonic clock, the same for all looks.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._sign: DriverSign | None = None
        self._looked_ms = 0.0
        self._silent_ms = 0.0  # since the newest sign
        self._still_ms = 0.0  # since the newest move of the loop

    def on_look(
        self, epoch: int, sign: DriverSign | None, now_ms: float, timeout_ms: float
    ) -> Lives | Silent | Hung:
        """Takes the epoch of the driver that holds the lease, and the newest sign of any driver.

        A driver that has not shown a sign yet has the same time for its first one.
        """
        own = sign if sign is not None and sign.epoch == epoch else None
        if epoch != self._epoch:
            self._begin(epoch, own, now_ms)
            return Lives()
        gap_ms = min(now_ms - self._looked_ms, GAP_SHARE_MAX * timeout_ms)
        check(gap_ms >= 0, "a monotonic clock does not go back", gap_ms=gap_ms)
        self._looked_ms = now_ms
        self._count(own, gap_ms)
        return self._judged(timeout_ms)

    def validate_state(self) -> None:
        check(self._silent_ms >= 0, "silence is a duration")
        check(self._still_ms >= self._silent_ms, "a loop that moves has shown a sign")

    def _begin(self, epoch: int, sign: DriverSign | None, now_ms: float) -> None:
        self._epoch, self._sign, self._looked_ms = epoch, sign, now_ms
        self._silent_ms = self._still_ms = 0.0

    def _count(self, sign: DriverSign | None, gap_ms: float) -> None:
        """Counts from 0 again for a sign or loop that moved; an old sign that turns up has not."""
        before = self._sign
        self._silent_ms += gap_ms
        self._still_ms += gap_ms
        if sign is None or (before is not None and sign.sequence <= before.sequence):
            return
        self._sign, self._silent_ms = sign, 0.0
        if before is None or sign.moves > before.moves or sign.is_long_step != before.is_long_step:
            self._still_ms = 0.0

    def _judged(self, timeout_ms: float) -> Lives | Silent | Hung:
        is_long_step = self._sign is not None and self._sign.is_long_step
        still_max_ms = max(timeout_ms, LONG_STEP_MAX_MS) if is_long_step else timeout_ms
        found = (
            (Symptom.NO_SIGN, self._silent_ms, timeout_ms),
            (Symptom.STANDS_STILL, self._still_ms, still_max_ms),
        )
        for symptom, for_ms, limit_ms in found:
            if for_ms >= limit_ms:
                return Hung(symptom, for_ms, limit_ms)
        for symptom, for_ms, limit_ms in found:
            if for_ms >= SILENCE_SHARE * limit_ms:
                return Silent(symptom, for_ms, limit_ms)
        return Lives()
