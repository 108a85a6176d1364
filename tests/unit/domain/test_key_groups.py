"""Key groups: at any parallelism, each has one owner, and owners and ranges agree."""

from itertools import pairwise

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.key_groups import owner_of, range_of

MAXIMA = (1, 2, 3, 7, 10, 128, 200)


@pytest.mark.parametrize("maximum", MAXIMA)
def test_each_group_lies_in_the_range_of_its_owner_and_in_no_other(maximum: int) -> None:
    for parallelism in range(1, maximum + 1):
        ranges = [range_of(subtask, parallelism, maximum) for subtask in range(parallelism)]
        for group in range(maximum):
            holders = [subtask for subtask, held in enumerate(ranges) if group in held]
            assert holders == [owner_of(group, parallelism, maximum)], (group, parallelism)


@pytest.mark.parametrize("maximum", MAXIMA)
def test_ranges_differ_in_length_by_one_group_at_most_and_overlap_nowhere(maximum: int) -> None:
    for parallelism in range(1, maximum + 1):
        ranges = [range_of(subtask, parallelism, maximum) for subtask in range(parallelism)]
        lengths = {held.last - held.first + 1 for held in ranges}
        assert min(lengths) >= 1
        assert max(lengths) - min(lengths) <= 1
        assert not any(one.overlaps(other) for one, other in pairwise(ranges))


def test_impossible_subtasks_and_parallelisms_have_no_range() -> None:
    for subtask, parallelism, maximum in ((2, 2, 128), (-1, 2, 128), (0, 129, 128)):
        with pytest.raises(InvariantViolated):
            range_of(subtask, parallelism, maximum)
