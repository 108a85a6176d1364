"""How far event time had come at a cut, by key group, if subtasks had come unequally far.

Without it, a subtask restored from several would have to take the least of their watermarks, and
would emit again what the others had emitted (see `operators.keyed_time`). A cut before all key
groups have caught up again must pass it on.
"""

import numpy as np

from pipelines.domain.elements import MIN_WATERMARK_MS
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.operators.columns import Longs

KeyTime = tuple[int, int, int]
"""First and last key group, both included, and their event time in milliseconds."""


def by_key_group(times: tuple[KeyTime, ...], max_parallelism: int) -> Longs | None:
    """None: all key groups are where the subtask's watermark is."""
    if len({time_ms for _, _, time_ms in times}) < 2:
        return None
    by_group = np.full(max_parallelism, MIN_WATERMARK_MS, np.int64)
    for first, last, time_ms in times:
        by_group[first : last + 1] = time_ms
    return by_group


def key_times(
    by_group: Longs | None, own: KeyGroupRange, watermark_ms: int | None
) -> list[KeyTime]:
    """Runs of own key groups with equal times; empty once the watermark has passed all of them."""
    if by_group is None:
        return []
    restored = by_group[own.first : own.last + 1]
    now = np.maximum(restored, MIN_WATERMARK_MS if watermark_ms is None else watermark_ms)
    if (now == now[0]).all() and now[0] == watermark_ms:
        return []
    begins = np.flatnonzero(np.append(True, now[1:] != now[:-1])).tolist()
    ends = [*begins[1:], len(now)]
    return [
        (own.first + begin, own.first + end - 1, int(now[begin]))
        for begin, end in zip(begins, ends, strict=True)
    ]
