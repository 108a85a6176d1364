"""The index from hash to row, against a dictionary."""

import random

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.state.key_index import NO_ROW, KeyIndex


@pytest.mark.parametrize("spread", ["whole range", "few upper bits", "small numbers"])
@pytest.mark.parametrize("seed", range(15))
def test_it_is_a_dictionary(seed: int, spread: str) -> None:
    rng = random.Random(seed)
    index = KeyIndex()
    model: dict[int, int] = {}

    for number in range(15):
        fresh = {random_hash(rng, spread) for _ in range(rng.choice([1, 30, 200]))} - model.keys()
        rows = list(range(number * 1000, number * 1000 + len(fresh)))
        index.insert(hashes(fresh), np.array(rows, dtype=np.int64))
        model.update(zip(fresh, rows, strict=True))
        gone = rng.sample(sorted(model), len(model) * rng.randint(0, 3) // 4)
        index.remove(hashes(gone))
        for each in gone:
            del model[each]

        asked = [*model, *gone, *(random_hash(rng, spread) for _ in range(20))] * 2
        assert index.find(hashes(asked)).tolist() == [model.get(each, NO_ROW) for each in asked]


def test_the_hash_that_marks_an_empty_place_is_a_hash_like_any_other() -> None:
    index = KeyIndex()
    before = index.find(hashes([0])).tolist()
    index.insert(hashes([0, 1]), np.array([7, 8]))
    with_row = index.find(hashes([0, 1])).tolist()
    index.remove(hashes([0]))

    assert (before, with_row) == ([NO_ROW], [7, 8])
    assert index.find(hashes([0, 1])).tolist() == [NO_ROW, 8]


def test_keys_that_come_and_go_do_not_make_it_grow() -> None:
    index = KeyIndex()

    for number in range(60):
        batch = np.arange(1 + number * 100, 101 + number * 100, dtype=np.uint64)
        index.insert(batch, np.arange(100))
        index.remove(batch)

    assert len(index._hashes) <= 2048


def test_removing_what_was_never_there_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        KeyIndex().remove(hashes([5]))


def hashes(values: "set[int] | list[int]") -> np.ndarray:
    return np.array(list(values), dtype=np.uint64)


def random_hash(rng: random.Random, spread: str) -> int:
    match spread:
        case "few upper bits":  # all keys want the same few places
            return (rng.randrange(3) << 62) + rng.randrange(5000)
        case "small numbers":
            return rng.randrange(1500)
        case _:
            return rng.randrange(1 << 64)
