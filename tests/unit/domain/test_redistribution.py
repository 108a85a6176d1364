"""Operator state at any parallelism: split between subtasks, given to all, or broadcast."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.key_groups import Redistribution, Taken, taken_by

Element = tuple[int, int]


@pytest.mark.parametrize("seed", range(100))
def test_each_element_of_a_split_list_goes_to_one_subtask_in_even_shares(
    seed: int,
) -> None:
    rng = random.Random(seed)
    held = [rng.randrange(6) for _ in range(rng.randint(1, 6))]
    parallelism = rng.randint(1, 6)

    shares = shares_of(Redistribution.SPLIT, held, parallelism)

    dealt = sorted(element for share in shares for element in share)
    assert dealt == [(old, number) for old, count in enumerate(held) for number in range(count)]
    if len(held) != parallelism:
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_subtask_keeps_its_split_list_at_the_same_parallelism() -> None:
    shares = shares_of(Redistribution.SPLIT, [3, 0, 1], 3)

    assert shares == [[(0, 0), (0, 1), (0, 2)], [], [(2, 0)]]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_every_subtask_gets_the_whole_union_list_in_subtask_order(parallelism: int) -> None:
    shares = shares_of(Redistribution.UNION, [2, 0, 1], parallelism)

    assert shares == [[(0, 0), (0, 1), (2, 0)]] * parallelism


def test_a_broadcast_map_is_taken_from_one_subtask_that_had_it() -> None:
    shares = shares_of(Redistribution.BROADCAST, [2, 2], 5)

    assert [share[0][0] for share in shares] == [0, 1, 0, 1, 0]
    assert all(len(share) == 2 for share in shares)


@pytest.mark.parametrize("kind", Redistribution)
def test_no_state_is_taken_if_none_was_held(kind: Redistribution) -> None:
    assert taken_by(0, 2, kind, []) == []


def test_a_subtask_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvariantViolated):
        taken_by(2, 2, Redistribution.UNION, [1])


def shares_of(kind: Redistribution, held: list[int], parallelism: int) -> list[list[Element]]:
    return [
        [element for taken in taken_by(subtask, parallelism, kind, held)
         for element in elements(taken, held)]
        for subtask in range(parallelism)
    ]  # fmt: skip


def elements(taken: Taken, held: list[int]) -> list[Element]:
    numbers = range(taken.first, held[taken.old_subtask], taken.step)
    return [(taken.old_subtask, number) for number in numbers]
