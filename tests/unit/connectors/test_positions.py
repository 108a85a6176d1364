"""Positions: every record is read once, at any parallelism and however often it changes."""

import random

import pytest

from pipelines.connectors.split_progress import SplitPositions, initial, redistribute
from pipelines.domain.errors import InvariantViolated

Record = tuple[int, int]  # (split, index within the split)


@pytest.mark.parametrize("seed", range(200))
def test_every_record_is_read_once_and_splits_ascend_across_rescales(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(0, 5) for _ in range(rng.randint(0, 25))]
    expected = [(split, index) for split, size in enumerate(sizes) for index in range(size)]
    read: list[Record] = []

    positions = [initial(subtask, p) for p in [rng.randint(1, 6)] for subtask in range(p)]
    for _ in range(rng.randint(0, 4)):
        positions = [read_some(rng, sizes, one, read) for one in positions]
        new = rng.randint(1, 6)
        rng.shuffle(positions)
        positions = [redistribute(positions, subtask, new) for subtask in range(new)]
    for one in positions:
        read_all(sizes, one, read)

    assert sorted(read) == expected


@pytest.mark.parametrize("seed", range(50))
def test_each_subtask_reads_its_splits_in_ascending_order(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 3) for _ in range(30)]
    old = [read_some(rng, sizes, initial(i, 4), []) for i in range(4)]

    for subtask in range(3):
        read: list[Record] = []
        read_all(sizes, redistribute(old, subtask, 3), read)

        assert read == sorted(read)


def test_an_endless_sequence_of_splits_can_be_redistributed() -> None:
    old = [SplitPositions(((1000, 7),), 1002, 2), SplitPositions((), 999, 2)]

    new = [redistribute(old, subtask, 3) for subtask in range(3)]

    assert new == [
        SplitPositions(((999, 0),), 1002, 3),
        SplitPositions(((1000, 7),), 1003, 3),
        SplitPositions(((1001, 0),), 1004, 3),
    ]


def test_positions_survive_json() -> None:
    position = initial(1, 2).advanced(5)

    assert SplitPositions.from_json(position.to_json()) == position
    assert position.to_json() == {"backlog": ((1, 5),), "frontier": 3, "stride": 2}


def test_the_position_moves_past_an_empty_split() -> None:
    assert initial(0, 2).finished(lambda _: True) == SplitPositions((), 2, 2)


def test_the_position_stays_after_the_last_split() -> None:
    assert initial(0, 2).finished(lambda _: False) == initial(0, 2)


@pytest.mark.parametrize(
    "old",
    [
        [],
        [initial(0, 2)],  # the other half is missing
        [initial(0, 2), initial(0, 2)],  # one twice
        [initial(0, 1), initial(1, 2)],  # from two different points
    ],
)
def test_an_incomplete_set_of_old_positions_is_refused(old: list[SplitPositions]) -> None:
    with pytest.raises(InvariantViolated, match="positions of all old subtasks"):
        redistribute(old, 0, 1)


@pytest.mark.parametrize(
    ("backlog", "frontier", "stride"),
    [
        (((2, 0), (1, 0)), 3, 1),
        (((1, 0), (1, 0)), 3, 1),
        (((3, 0),), 3, 1),
        (((1, -1),), 3, 1),
        ((), 0, 0),
    ],
)
def test_impossible_positions_are_refused(
    backlog: tuple[Record, ...], frontier: int, stride: int
) -> None:
    with pytest.raises(InvariantViolated):
        SplitPositions(backlog, frontier, stride)


def read_some(
    rng: random.Random, sizes: list[int], position: SplitPositions, read: list[Record]
) -> SplitPositions:
    for _ in range(rng.randint(0, 30)):
        position = step(sizes, position, read)
    return position


def read_all(sizes: list[int], position: SplitPositions, read: list[Record]) -> None:
    while position.current()[0] < len(sizes):
        position = step(sizes, position, read)


def step(sizes: list[int], position: SplitPositions, read: list[Record]) -> SplitPositions:
    split, offset = position.current()
    if split >= len(sizes) or offset >= sizes[split]:
        return position.finished(lambda index: index < len(sizes))
    read.append((split, offset))
    return position.advanced(1)
