"""Minimum, maximum, mean and quantiles of measured values.

Source: Flink, `StatsSummarySnapshot`. Its quantiles are those of Commons Math (`LEGACY`): the value
at position p (n + 1) of the sorted ones, interpolated between its neighbours, within the ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Zeros, and no quantiles, if nothing was measured."""

    minimum: float
    maximum: float
    average: float
    quantiles: tuple[float, ...]  # as in QUANTILES; empty: not known


def distribution(values: Iterable[float]) -> Distribution:
    ordered = sorted(values)
    if not ordered:
        return Distribution(0, 0, 0, ())
    quantiles = tuple(quantile(ordered, share) for share in QUANTILES)
    return Distribution(ordered[0], ordered[-1], sum(ordered) / len(ordered), quantiles)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Needs at least one sorted value; `share` is from 0 to 1."""
    position = share * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    below = floor(position)
    lower, upper = ordered[below - 1], ordered[below]
    return lower + (position - below) * (upper - lower)
