"""Compares runs with a limit in pairs: limit, ours, ours, limit.

The other load of the machine changes with time; in this order a steady change affects both sides
equally. If the two limits of a pair differ by more than a fifth, the load changed within the pair.
Then the pair is repeated, and the output says so. A pair that stays unsteady counts with the
steadiest of its tries and is named.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bench.benchmark import Fields, progress

STEADY_WITHIN = 0.2
TRIES_MAX = 4
CONFIDENCE = 0.95

Limit = TypeVar("Limit")
Run = TypeVar("Run")


@dataclass(frozen=True, slots=True)
class Pair(Generic[Limit, Run]):
    """`ours` maps the name of each variant to its two runs; all variants share the limits."""

    limits: tuple[Limit, Limit]
    ours: Mapping[str, tuple[Run, Run]]
    limit_spread: float  # by how much the faster limit exceeds the slower one
    repeats: int

    @property
    def is_steady(self) -> bool:
        return self.limit_spread <= STEADY_WITHIN


def run_pairs(
    count: int,
    limit: Callable[[], Limit],
    ours: Mapping[str, Callable[[], Run]],
    rate: Callable[[Limit], float],
) -> list[Pair[Limit, Run]]:
    return [_steady_pair(number, limit, ours, rate) for number in range(count)]


def described(pairs: Sequence[Pair[Limit, Run]]) -> Fields:
    """Describes how steady the machine was."""
    return {
        "limit_spreads": [round(pair.limit_spread, 3) for pair in pairs],
        "repeated_pairs": sum(pair.repeats for pair in pairs),
        "unsteady_pairs": [number for number, pair in enumerate(pairs) if not pair.is_steady],
    }


def mean_rate(rates: Sequence[float]) -> float:
    """Returns the rate of several runs over the same records: all records over all the time."""
    return statistics.harmonic_mean(rates)


def median_interval(values: Sequence[float]) -> Fields:
    """Returns a confidence interval for the median, bounded by two of the values.

    It uses the sign test, which makes no assumption about the distribution. Six values are the
    fewest that reach 95 %. With fewer, the interval spans all values, and `confidence` says how
    sure it is.
    """
    ordered, count = sorted(values), len(values)
    ranks = range(1, (count + 1) // 2 + 1)
    sure = [rank for rank in ranks if _confidence(rank, count) >= CONFIDENCE]
    rank = max(sure, default=1)
    return {
        "low": round(ordered[rank - 1], 4),
        "high": round(ordered[count - rank], 4),
        "confidence": round(max(0.0, _confidence(rank, count)), 3),
    }


def _confidence(rank: int, count: int) -> float:
    """Returns the confidence that the median lies between the `rank`-th values from both ends."""
    return 1.0 - 2.0 * sum(math.comb(count, below) for below in range(rank)) / 2**count


def _steady_pair(
    number: int,
    limit: Callable[[], Limit],
    ours: Mapping[str, Callable[[], Run]],
    rate: Callable[[Limit], float],
) -> Pair[Limit, Run]:
    tries: list[Pair[Limit, Run]] = []
    for attempt in range(TRIES_MAX):
        tries.append(_pair(limit, ours, rate, attempt))
        if tries[-1].is_steady:
            return tries[-1]
        differ = f"pair {number}: its two limits differ by {tries[-1].limit_spread:.0%}"
        progress(f"{differ}; {'again' if attempt + 1 < TRIES_MAX else 'the steadiest try counts'}")
    steadiest = min(tries, key=lambda pair: pair.limit_spread)
    return Pair(steadiest.limits, steadiest.ours, steadiest.limit_spread, TRIES_MAX - 1)


def _pair(
    limit: Callable[[], Limit],
    ours: Mapping[str, Callable[[], Run]],
    rate: Callable[[Limit], float],
    repeats: int,
) -> Pair[Limit, Run]:
    before = limit()
    first = {name: run() for name, run in ours.items()}
    second = {name: ours[name]() for name in reversed(ours)}
    after = limit()
    slower, faster = sorted((rate(before), rate(after)))
    ours_by_name = {name: (first[name], second[name]) for name in ours}
    return Pair((before, after), ours_by_name, faster / slower - 1.0, repeats)
