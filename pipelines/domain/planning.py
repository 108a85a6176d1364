"""How often to checkpoint, how much checkpoints write, and how long a recovery takes.

Pure arithmetic on measurements. The interval is the one at which checkpoints and failures together
cost least. It assumes random failures that rarely follow each other within one interval, and costs
that do not depend on the interval.

Volume and recovery each have two estimates: a textbook's, and one whose units fit its name.
Textbooks write "checkpoint volume = state size x checkpoint frequency". That is a rate (bytes per
second), and it counts the whole state even if a checkpoint only writes the changes. They write
"recovery time = state size / (read speed x bandwidth)". That is not a time: bytes over the product
of two speeds are seconds squared per byte. Data that is read and then sent is limited by the slower
of the two, and reading is only a part of a recovery.

Sources: Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 17(9), 1974;
Daly, "A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps", FGCS 22, 2006,
equation 37. Both give the time between two checkpoints, in the unit of their arguments.
"""

import math
from dataclasses import dataclass

from pipelines.domain.errors import check

RULE_OF_THREE = 3.0
"""If nothing occurs in a time T, its rate is below one per T / 3 with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """`mean_ms` is the time between failures; if `is_bound`, at least that: none occurred."""

    observed_ms: float
    failure_count: int

    @property
    def is_bound(self) -> bool:
        return self.failure_count == 0

    @property
    def mean_ms(self) -> float:
        if self.is_bound:
            return self.observed_ms / RULE_OF_THREE
        return self.observed_ms / self.failure_count


@dataclass(frozen=True, slots=True)
class Costs:
    """All in ms: the work that one checkpoint costs, and the time that one failure costs."""

    checkpoint_ms: float
    between_failures_ms: float
    recovery_ms: float  # from the failure to all subtasks running


def young_ms(costs: Costs) -> float:
    """First order: the square root of twice the cost times the mean time between failures."""
    _check(costs)
    return math.sqrt(2 * costs.checkpoint_ms * costs.between_failures_ms)


def daly_ms(costs: Costs) -> float:
    """Higher order; the time between failures itself if a checkpoint costs twice that or more."""
    _check(costs)
    cost_ms, mean_ms = costs.checkpoint_ms, costs.between_failures_ms
    if cost_ms >= 2 * mean_ms:
        return mean_ms
    share = cost_ms / (2 * mean_ms)
    return math.sqrt(2 * cost_ms * mean_ms) * (1 + math.sqrt(share) / 3 + share / 9) - cost_ms


def lost_ratio(interval_ms: float, costs: Costs) -> float:
    """The lost share of all time, to first order: checkpoints, and half an interval per failure.

    The recovery of each failure is included. The share may exceed 1: then nothing gets done.
    """
    _check(costs)
    check(interval_ms > 0, "an interval lasts", interval_ms=interval_ms)
    per_failure_ms = interval_ms / 2 + costs.recovery_ms
    return costs.checkpoint_ms / interval_ms + per_failure_ms / costs.between_failures_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """`interval_ms` is the value to set; `why` is a clause."""

    interval_ms: float
    why: str


def advice(costs: Costs, duration_ms: float | None) -> Advice:
    """Daly's interval, but not shorter than a checkpoint's duration (its p99), and in whole steps.

    A checkpoint without cost has no best interval; then its duration is the answer.
    """
    best_ms = daly_ms(costs)
    if duration_ms is not None and best_ms < duration_ms:
        why = "a checkpoint lasts that long, and the next should not begin before it is done"
        return Advice(_rounded_up_ms(duration_ms), why)
    return Advice(_rounded_up_ms(best_ms), "there the two losses together are least")


def _rounded_up_ms(value_ms: float) -> float:
    """Rounded up to two digits; the measurements carry no more."""
    if value_ms <= 0:
        return 0.0
    step = 10 ** max(0, math.floor(math.log10(value_ms)) - 1)
    return float(math.ceil(value_ms / step) * step)


def _check(costs: Costs) -> None:
    check(costs.checkpoint_ms >= 0, "a checkpoint gives no time back", costs=costs)
    check(costs.between_failures_ms > 0, "some time was observed", costs=costs)


MS_PER_S = 1000.0


def textbook_volume_bytes_per_s(state_bytes: float, interval_ms: float) -> float:
    """The whole state, once per interval."""
    check(interval_ms > 0, "an interval lasts", interval_ms=interval_ms)
    return state_bytes * MS_PER_S / interval_ms


def written_bytes_per_s(uploaded_bytes: float, interval_ms: float) -> float:
    """The upload of one checkpoint (with increments, less than the state), once per interval."""
    return textbook_volume_bytes_per_s(uploaded_bytes, interval_ms)


def kept_bytes(state_bytes: float, uploaded_bytes: float, retained: int) -> float:
    """About how much the storage holds: one whole state, and what each further point adds."""
    check(retained >= 1, "one point is retained at least", retained=retained)
    return state_bytes + (retained - 1) * uploaded_bytes


def textbook_recovery(
    state_bytes: float, read_bytes_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """The recovery time as textbooks write it, in seconds squared per byte."""
    check(read_bytes_per_s > 0 and bandwidth_bytes_per_s > 0, "data moves")
    return state_bytes / (read_bytes_per_s * bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class RecoveryEstimate:
    """An estimate in ms.

    A `catch_up_ms` of None means that it never catches up: input comes as fast as it can be read.
    """

    restart_ms: float
    read_ms: float
    catch_up_ms: float | None

    @property
    def to_running_ms(self) -> float:
        return self.restart_ms + self.read_ms

    @property
    def to_caught_up_ms(self) -> float | None:
        return None if self.catch_up_ms is None else self.to_running_ms + self.catch_up_ms


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of all slots together.

    Rates are in records per second: incoming, and at most readable.
    """

    read_bytes_per_s: float
    bandwidth_bytes_per_s: float
    arriving_per_s: float
    reading_per_s: float


def recovery_estimate(
    state_bytes: float, restart_ms: float, interval_ms: float, speeds: Speeds
) -> RecoveryEstimate:
    """`restart_ms` is a recovery without reading state: detect, decide, stop, start.

    On average, half an interval of input is read again, plus what arrives meanwhile.
    """
    slower = min(speeds.read_bytes_per_s, speeds.bandwidth_bytes_per_s)
    check(slower > 0, "data moves", speeds=speeds)
    read_ms = state_bytes / slower * MS_PER_S
    behind_ms = interval_ms / 2 + restart_ms + read_ms
    return RecoveryEstimate(restart_ms, read_ms, _catch_up_ms(behind_ms, speeds))


def _catch_up_ms(behind_ms: float, speeds: Speeds) -> float | None:
    if speeds.arriving_per_s <= 0:
        return 0.0
    spare_per_s = speeds.reading_per_s - speeds.arriving_per_s
    if spare_per_s <= 0:
        return None
    return behind_ms * speeds.arriving_per_s / spare_per_s
