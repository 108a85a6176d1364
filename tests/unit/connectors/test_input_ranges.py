"""Input ranges: what was read between two cuts, no matter which subtask read it."""

import random

import msgspec
import pytest

from pipelines.connectors.split_progress import (
    NamedPositions,
    SplitPositions,
    SplitProgress,
    initial,
    ranges,
    redistribute,
)
from pipelines.domain.ledger import SplitRange
from pipelines.domain.snapshots import Json

SPLITS, SPLIT_RECORDS = 7, 10


@pytest.mark.parametrize("seed", range(100))
def test_ranges_are_contiguous_and_cover_every_split_once(seed: int) -> None:
    """Subtasks read the splits in turn, and the number of subtasks changes at some cuts."""
    rng = random.Random(seed)
    readers = [initial(0, 1)]
    cut: list[Json] = []
    read: dict[str, int | None] = {}

    for _ in range(200):
        readers = rescaled(readers, rng) if rng.random() < 0.2 else readers
        readers = [read_on(each, rng) for each in readers]
        after = [each.to_json() for each in readers]
        for found in ranges(cut, after):
            assert found.first == read.get(found.split, 0)
            read[found.split] = found.end
        cut = after

    assert read == {str(split): None for split in range(SPLITS)}


def test_nothing_read_gives_no_range() -> None:
    cut = [SplitPositions(((0, 4),), 1, 1).to_json()]

    assert ranges(cut, cut) == []
    assert ranges([], []) == []
    assert ranges(["positions of another kind"], ["positions of another kind"]) == []


def test_named_splits_range_from_the_old_to_the_new_offset() -> None:
    before = named(SplitProgress("a", 3, 3), SplitProgress("b", 9, 9, is_finished=True))
    after = named(
        SplitProgress("a", 8, 8),
        SplitProgress("b", 9, 9, is_finished=True),
        SplitProgress("c", 405, 5),
        SplitProgress("d", 0, 0),
    )

    found = ranges(before, after)

    assert found == [
        SplitRange(split="a", first=3, end=8),
        SplitRange(split="c", first=None, end=405),
    ]


def test_the_range_of_a_finished_named_split_has_no_end() -> None:
    before = named(SplitProgress("a", 3, 3))
    after = named(SplitProgress("a", 8, 8, is_finished=True), SplitProgress("e", is_finished=True))

    assert ranges(before, after) == [
        SplitRange(split="a", first=3, end=None),
        SplitRange(split="e", first=None, end=None),
    ]


def named(*splits: SplitProgress) -> list[Json]:
    return [msgspec.to_builtins(NamedPositions(splits, has_looked=True))]


def rescaled(readers: list[SplitPositions], rng: random.Random) -> list[SplitPositions]:
    parallelism = rng.randint(1, 4)
    return [redistribute(readers, subtask, parallelism) for subtask in range(parallelism)]


def read_on(reader: SplitPositions, rng: random.Random) -> SplitPositions:
    split, offset = reader.current()
    if split >= SPLITS:
        return reader
    distance = min(rng.randint(0, 6), SPLIT_RECORDS - offset)
    if distance == SPLIT_RECORDS - offset:
        return reader.finished(lambda index: index < SPLITS)
    return reader.advanced(distance) if distance else reader
