"""Fewer points than were measured, and none of the extremes lost. Pure.

Source: the minimum and maximum of each of equal parts, as oscilloscopes draw (peak detection).
"""

from collections.abc import Sequence
from itertools import pairwise


def extremes(values: Sequence[float | None], points_max: int) -> list[int]:
    """Indices, in order, of at most `points_max` values: the least and greatest of each part.

    Where all of them fit, all that are known are answered. `points_max` is at least 2.
    """
    known = [index for index, value in enumerate(values) if value is not None]
    if len(known) <= points_max:
        return known
    numbers = [value for value in values if value is not None]
    parts = points_max // 2
    bounds = [round(part * len(known) / parts) for part in range(parts + 1)]
    kept: set[int] = set()
    for begin, end in pairwise(bounds):
        part = range(begin, end)
        kept |= {min(part, key=numbers.__getitem__), max(part, key=numbers.__getitem__)}
    return [known[place] for place in sorted(kept)]
