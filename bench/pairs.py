"""Runs held against a limit in pairs: limit, ours, ours, limit.

What else the machine does changes with time; in this order a steady change weighs as much on both
sides. Where the two limits of a pair differ by more than a fifth, something came or went within the
pair, so it is done again, and the output says so. A pair that stays unsteady counts with the
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
    """`ours`: the two runs of each of those that share the limits, by name."""

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
    """How steady the machine was."""
    return {
        "limit_spreads": [round(pair.limit_spread, 3) for pair in pairs],
        "repeated_pairs": sum(pair.repeats for pair in pairs),
        "unsteady_pairs": [number for number, pair in enumerate(pairs) if not pair.is_steady],
    }


def mean_rate(rates: Sequence[float]) -> float:
    """Of runs over the same records: all records over all the time."""
    return statistics.harmonic_mean(rates)


def median_interval(values: Sequence[float]) -> Fields:
    """Between which two of the values the median of all such values lies, and how surely.

    By the sign test: it asks nothing of how they are distributed. Six values are the fewest that
    come to 95 %; with fewer, the interval is all of them, and `confidence` says what that is worth.
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
    """That the median lies between the value of that rank and the one of that rank from above."""
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
