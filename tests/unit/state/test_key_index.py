"""The key index behaves like a dictionary from hash to row, for any kind of hashes."""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.state.in_memory import key_rows
from pipelines.state.in_memory.key_rows import ABSENT, INITIAL_CAPACITY, Distinct, KeyIndex

HASHES: dict[str, tuple[Callable[[random.Random], int], int]] = {
    "few": (lambda rng: rng.getrandbits(6), 200),
    "of one slot": (lambda rng: rng.getrandbits(12), 40),
    "of one slot near the end": (lambda rng: (63 << 58) - 1 - rng.getrandbits(12), 40),
    "any": (lambda rng: rng.getrandbits(64), 400),
}
"""The generator of each kind of hash, and the most hashes that it makes at a time.

A probe passes all hashes of its slot, so crowded slots get fewer.
"""


def move_slowly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_rows, "MOVED_SLOTS_MIN", 16)
    patch.setattr(key_rows, "MOVED_SLOTS_PER_HASH", 1)


@pytest.mark.parametrize("slowly", [True, False])
@pytest.mark.parametrize("which", HASHES)
@pytest.mark.parametrize("seed", range(8))
def test_the_index_equals_a_dictionary_over_random_operations(
    monkeypatch: pytest.MonkeyPatch, seed: int, which: str, slowly: bool
) -> None:
    if slowly:
        move_slowly(monkeypatch)
    rng, (made, most) = random.Random(seed), HASHES[which]
    index, model = KeyIndex(), {}
    unused = itertools.count()

    for _ in range(25):
        hashes = np.array([made(rng) for _ in range(rng.randint(1, most))], np.uint64)
        assert index.find(hashes).tolist() == [model.get(int(h), ABSENT) for h in hashes]
        new = Distinct.of(hashes[index.find(hashes) == ABSENT]).hashes
        rows = np.array([next(unused) for _ in new], np.int64)
        index.insert(new, rows)
        model.update(zip(new.tolist(), rows.tolist(), strict=True))
        moved = rng.sample(sorted(model), rng.randint(0, len(model)))
        rows = np.array([next(unused) for _ in moved], np.int64)
        index.replace(np.array(moved, np.uint64), rows)
        model.update(zip(moved, rows.tolist(), strict=True))
        gone = set(rng.sample(sorted(model), rng.randint(0, len(model)) // rng.randint(1, 9)))
        index.delete(np.array(sorted(gone), np.uint64))
        model = {key: row for key, row in model.items() if key not in gone}
        assert len(index) == len(model)

    every = np.array(sorted(model), np.uint64)
    assert index.find(every).tolist() == [model[key] for key in every.tolist()]


def test_keys_leave_a_full_table_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hashes inserted meanwhile are found."""
    move_slowly(monkeypatch)
    monkeypatch.setattr(key_rows, "MOVED_SLOTS_PER_HASH", 2)
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, 1_200, np.uint64)
    rows = np.arange(len(hashes))
    index, most = KeyIndex(), INITIAL_CAPACITY * 6 // 10
    index.insert(hashes[:most], rows[:most])
    assert not index.is_moving

    looks = 0
    for begin in range(most, len(hashes), 8):
        part = slice(begin, begin + 8)
        assert (index.find(hashes[part]) == ABSENT).all()
        index.insert(hashes[part], rows[part])
        assert index.capacity == 2 * INITIAL_CAPACITY
        looks += index.is_moving

    assert looks == INITIAL_CAPACITY / 16 - 1 > 40
    assert (index.find(hashes) == rows).all()


def test_the_index_can_reserve_more_room_while_keys_are_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move_slowly(monkeypatch)
    hashes = np.random.default_rng(1).integers(0, 2**64, 20_000, np.uint64)
    rows = np.arange(len(hashes))
    index = KeyIndex()
    index.insert(hashes[:600], rows[:600])
    index.insert(hashes[600:620], rows[600:620])
    assert index.is_moving

    index.reserve(len(hashes))
    capacity = index.capacity
    index.insert(hashes[620:], rows[620:])

    assert index.capacity == capacity
    assert (index.find(hashes) == rows).all()


def test_inserts_and_deletes_during_a_move_do_not_hurry_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move_slowly(monkeypatch)
    rng = np.random.default_rng(1)
    index = KeyIndex()
    index.insert(rng.integers(0, 2**64, 600, np.uint64), np.arange(600))
    index.insert(rng.integers(0, 2**64, 20, np.uint64), np.arange(600, 620))
    assert index.is_moving
    monkeypatch.setattr(key_rows, "MOVED_SLOTS_MAX", None)  # a hurried move fails on None

    for _ in range(3):
        hashes = rng.integers(0, 2**58, 150, np.uint64)  # in slots that are empty by now
        index.insert(hashes, np.arange(1_000, 1_150))
        index.delete(hashes)

    assert index.is_moving
    assert len(index) == 620


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


def test_deleting_an_absent_hash_is_a_bug() -> None:
    with pytest.raises(InvariantViolated, match="present"):
        KeyIndex().delete(np.array([1], np.uint64))


def test_inserting_and_deleting_does_not_grow_the_index() -> None:
    index = KeyIndex()

    for first in range(0, 40_000, 400):
        hashes = np.arange(first, first + 400, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        index.insert(hashes, np.arange(400))
        index.delete(hashes)

    assert index.capacity == INITIAL_CAPACITY
    assert len(index) == 0
