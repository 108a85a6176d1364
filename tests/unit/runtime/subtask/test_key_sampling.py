"""Sampling of keys: hot keys are named, an even spread is not.

Key values leave the slot only if the settings show records.
"""

import random

import pyarrow as pa
import pytest

from pipelines.domain.ids import Uid
from pipelines.runtime.subtask.chains.exchange import (
    PERIOD_MS,
    PERIODS,
    ROWS_PER_PERIOD,
    KeySampler,
)
from pipelines.state.hashing import key_groups, key_hashes

GROUPS = 128


@pytest.mark.parametrize("seed", range(20))
def test_the_hottest_key_and_its_group_are_named_with_about_their_share(seed: int) -> None:
    rng = random.Random(seed)
    share, now = rng.uniform(0.3, 0.9), Now()
    sampler = KeySampler(Uid("sums"), ("key",), GROUPS, now, shows_keys=True)

    for _ in range(40):
        rows = rng.randint(1, 3_000)
        offer(sampler, ["hot" if rng.random() < share else f"k{i}" for i in range(rows)])
        now.ms += rng.uniform(0, PERIOD_MS)

    found = sampler.hottest()
    assert found is not None
    group = int(key_groups(hashes_of(["hot"]), GROUPS)[0])
    assert found.groups[0] == (group, pytest.approx(share, abs=0.12))
    assert found.keys[0] == ("hot", pytest.approx(share, abs=0.12))
    assert (found.vertex, found.columns) == ("sums", ["key"])
    assert found.sampled <= PERIODS * ROWS_PER_PERIOD


@pytest.mark.parametrize("seed", range(5))
def test_evenly_spread_keys_are_not_named(seed: int) -> None:
    rng = random.Random(seed)
    sampler = KeySampler(Uid("sums"), ("key",), GROUPS, Now(), shows_keys=True)

    offer(sampler, [f"k{rng.randrange(10_000)}" for _ in range(2_000)])

    assert sampler.hottest() is None


def test_a_few_records_have_no_hottest_key() -> None:
    sampler = KeySampler(Uid("sums"), ("key",), GROUPS, Now(), shows_keys=True)

    offer(sampler, ["hot"] * 99)

    assert sampler.hottest() is None


def test_without_the_setting_the_sampler_reports_no_key_values() -> None:
    sampler = KeySampler(Uid("sums"), ("key",), GROUPS, Now(), shows_keys=False)

    offer(sampler, ["a person's name"] * 500)

    found = sampler.hottest()
    assert found is not None
    assert (found.groups[0][1], found.keys) == (1.0, [])


def test_keys_that_were_hot_some_seconds_ago_are_forgotten() -> None:
    now = Now()
    sampler = KeySampler(Uid("sums"), ("key",), GROUPS, now, shows_keys=True)

    offer(sampler, ["before"] * 500)
    for _ in range(PERIODS):
        now.ms += PERIOD_MS
        offer(sampler, ["after"] * 500)

    found = sampler.hottest()
    assert found is not None
    assert found.keys == [("after", 1.0)]


class Now:
    def __init__(self) -> None:
        self.ms = 1.0

    def __call__(self) -> float:
        return self.ms


def offer(sampler: KeySampler, keys: list[str]) -> None:
    batch = pa.record_batch({"key": keys, "value": list(range(len(keys)))})
    sampler.on_batch(batch, hashes_of(keys))


def hashes_of(keys: list[str]) -> object:
    return key_hashes(pa.record_batch({"key": keys}), ("key",))
