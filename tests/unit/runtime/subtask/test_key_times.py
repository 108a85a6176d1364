"""Event time by key group survives cuts unchanged, until the watermark has passed it."""

import random

import numpy as np
import pytest

from pipelines.domain.key_groups import range_of
from pipelines.runtime.subtask.snapshots.in_flight import KeyTime, by_key_group, key_times

MAX_PARALLELISM = 16


@pytest.mark.parametrize("seed", range(50))
def test_no_key_group_loses_its_time_over_cuts_and_rescales(seed: int) -> None:
    rng = random.Random(seed)
    expected = np.full(MAX_PARALLELISM, -50)
    times: tuple[KeyTime, ...] = ()

    for _ in range(5):
        parallelism = rng.randint(1, 5)
        restored = by_key_group(times, MAX_PARALLELISM)
        least = int(expected.min())
        cut: list[KeyTime] = []
        for subtask in range(parallelism):
            own = range_of(subtask, parallelism, MAX_PARALLELISM)
            watermark = least + rng.choice([0, rng.randint(0, 40)])
            groups = slice(own.first, own.last + 1)
            expected[groups] = np.maximum(expected[groups], watermark)
            whole = (own.first, own.last, watermark)
            cut += key_times(restored, own, watermark) or [whole]
        times = tuple(cut)

        known = np.array([time for first, last, time in times for _ in range(first, last + 1)])
        assert known.tolist() == expected.tolist()


def test_no_times_per_key_group_are_kept_where_all_are_equal() -> None:
    own = range_of(0, 2, MAX_PARALLELISM)

    assert by_key_group(((0, 7, 5), (8, 15, 5)), MAX_PARALLELISM) is None
    assert key_times(None, own, 5) == []
    assert key_times(by_key_group(((0, 3, 5), (4, 15, 9)), MAX_PARALLELISM), own, 9) == []
