"""The index: a dictionary from hash to row, whatever the hashes look like."""

import random

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.state.in_memory.key_rows import ABSENT, Distinct, KeyIndex


@pytest.mark.parametrize("seed", range(30))
def test_it_equals_a_dictionary_over_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    bits = rng.choice([6, 12, 64])  # small hashes all start at the same slot
    index, model = KeyIndex(), {}

    for _ in range(15):
        hashes = np.array([rng.getrandbits(bits) for _ in range(rng.randint(1, 200))], np.uint64)
        assert index.find(hashes).tolist() == [model.get(int(h), ABSENT) for h in hashes]
        new = Distinct.of(hashes[index.find(hashes) == ABSENT]).hashes
        rows = np.array([rng.randint(0, 10**9) for _ in new], np.int64)
        index.insert(new, rows)
        model.update(zip(new.tolist(), rows.tolist(), strict=True))
        gone = rng.sample(sorted(model), rng.randint(0, len(model)))
        index.delete(np.array(gone, np.uint64))
        model = {key: row for key, row in model.items() if key not in gone}

    every = np.array(sorted(model), np.uint64)
    assert index.find(every).tolist() == [model[key] for key in every.tolist()]
    assert len(index) == len(model)


def test_distinct_hashes_come_in_order_of_first_appearance() -> None:
    hashes = np.array([7, 5, 7, 2**64 - 1, 5], np.uint64)

    distinct = Distinct.of(hashes)

    assert distinct.hashes.tolist() == [7, 5, 2**64 - 1]
    assert distinct.first.tolist() == [0, 1, 3]
    assert distinct.code.tolist() == [0, 1, 0, 2, 1]


def test_a_replaced_hash_has_its_new_row() -> None:
    index = KeyIndex()
    index.insert(np.array([1, 2], np.uint64), np.array([10, 20]))

    index.replace(np.array([2], np.uint64), np.array([21]))

    assert index.find(np.array([1, 2], np.uint64)).tolist() == [10, 21]


def test_deleting_what_is_absent_is_a_bug() -> None:
    with pytest.raises(InvariantViolated, match="present"):
        KeyIndex().delete(np.array([1], np.uint64))


def test_coming_and_going_does_not_let_it_grow() -> None:
    index = KeyIndex()
    start = index.size_bytes

    for first in range(0, 40_000, 400):
        hashes = np.arange(first, first + 400, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        index.insert(hashes, np.arange(400))
        index.delete(hashes)

    assert index.size_bytes == start
    assert len(index) == 0
