"""Reduces the number of points without losing an extreme. Pure.

Source: the minimum and maximum of equal parts, as oscilloscopes draw them (peak detection).
"""

import numpy as np
from numpy.typing import NDArray


def extremes(values: NDArray[np.float64], points_max: int) -> NDArray[np.int64]:
    """Indices, in order, of at most `points_max` values: the least and greatest of each part.

    NaN means unknown, and is left out. If all known values fit, returns all of them. `points_max`
    is at least 2.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) <= points_max:
        return known
    length = -(-len(known) // (points_max // 2))
    parts = -(-len(known) // length)
    filled = np.full(parts * length, np.nan)
    filled[: len(known)] = values[known]
    each_part = filled.reshape(parts, length)  # the last part is padded with NaN
    begins = np.arange(parts) * length
    least, greatest = np.nanargmin(each_part, axis=1), np.nanargmax(each_part, axis=1)
    kept: NDArray[np.int64] = np.unique(np.concatenate([begins + least, begins + greatest]))
    return known[kept]
