"""Joins intervals of time that follow each other within a gap into runs; array arithmetic only.

A run is the result of Flink's `MergingWindowSet`, which merges windows one by one.
"""

from dataclasses import dataclass

import numpy as np

from pipelines.operators.columns import Longs

NO_RUN = -1


@dataclass(frozen=True, slots=True)
class Runs:
    """`of` maps each interval to its run. Runs are in order of key, then of time."""

    of: Longs
    key: Longs  # by run
    first: Longs
    last: Longs
    head: Longs  # by run, the position of its earliest interval

    @property
    def count(self) -> int:
        return len(self.key)


def runs_of(key: Longs, first: Longs, last: Longs, gap_ms: int) -> Runs:
    """Intervals [first, last] of equal key join if at most `gap_ms` lies between them.

    1. Sort by key, then by beginning.
    2. Find how far the intervals of the key reach so far: a maximum that restarts with each key.
    3. A run begins where the next interval begins beyond the gap.
    """
    order = np.lexsort((first, key))
    keys, begin = key[order], first[order]
    reach = _running_maximum(keys, last[order])
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (keys[1:] != keys[:-1]) | (begin[1:] > reach[:-1] + gap_ms)
    run = np.cumsum(starts) - 1
    of = np.empty(len(order), np.int64)
    of[order] = run
    at = np.flatnonzero(starts)
    ends = np.append(at[1:], len(order)) - 1 if len(order) else at
    return Runs(of, keys[at], begin[at], reach[ends], order[at])


def run_at(runs: Runs, key: Longs, times_ms: Longs, gap_ms: int) -> Longs:
    """The run that holds each key and time, or lies within the gap of it; NO_RUN if none does.

    The runs of a key are further apart than the gap, so only one run comes into question: the last
    that begins at most a gap after the time.
    """
    keys = np.concatenate([runs.key, key])
    begins = np.concatenate([runs.first, times_ms + gap_ms])
    is_row = np.arange(len(keys)) >= runs.count
    order = np.lexsort((is_row, begins, keys))
    candidate = np.maximum.accumulate(np.where(is_row[order], -1, order))
    chosen = np.empty(len(keys), np.int64)
    chosen[order] = candidate
    chosen = chosen[runs.count :]
    known = np.flatnonzero(chosen >= 0)
    run = chosen[known]
    is_held = (runs.key[run] == key[known]) & (runs.last[run] + gap_ms >= times_ms[known])
    chosen[known[~is_held]] = NO_RUN
    return chosen


def _running_maximum(ascending_keys: Longs, values: Longs) -> Longs:
    """Compares ranks, not values, so that a later key outranks everything of an earlier one."""
    by_value = np.sort(values)
    rank = np.searchsorted(by_value, values)
    climbing = np.maximum.accumulate(ascending_keys * len(values) + rank)
    reached: Longs = by_value[climbing - ascending_keys * len(values)]
    return reached
