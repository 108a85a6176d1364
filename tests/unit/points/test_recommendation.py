"""The recommended point is the newest usable one on the line of the newest run."""

import random
from typing import Any

import pytest

from pipelines.points.verdict import Candidate, Fitness, recommended


@pytest.mark.parametrize("seed", range(100))
def test_what_is_recommended_can_be_used_and_nothing_better_is_left(seed: int) -> None:
    draws = random.Random(seed)
    candidates = [
        point(
            draws.randint(1, 40),
            is_on_line=draws.random() < 0.5,
            fitness=draws.choice(list(Fitness)),
        )
        for _ in range(draws.randint(0, 6))
    ]

    found = recommended(candidates)

    usable = [each for each in candidates if each.fitness.is_usable]
    if not usable:
        assert found.index is None
        return
    assert found.index is not None
    chosen = candidates[found.index]
    assert chosen.fitness.is_usable
    better = [e for e in usable if e.is_on_line >= chosen.is_on_line]
    assert chosen.completed_ms == max(each.completed_ms for each in better)
    assert chosen.is_on_line or not any(each.is_on_line for each in usable)


def test_the_reason_says_how_much_is_read_again_and_whether_it_was_verified() -> None:
    verified = point(12, fitness=Fitness.VERIFIED, records_to_replay=1_234)

    found = recommended([verified, point(11)])

    assert found.reason == (
        "Checkpoint 12 of run 1 is the newest usable point, so the least input is read again: about"
        " 1,234 records. All of its files were verified and match their digests."
    )


def test_a_point_that_nobody_has_read_says_so_and_what_follows() -> None:
    found = recommended([point(12, records_to_replay=1)])

    assert "so the least input is read again: about 1 record. Not verified since" in found.reason
    assert "the restore verifies it before it starts." in found.reason


def test_newer_ones_that_cannot_be_used_are_named_with_why() -> None:
    found = recommended(
        [
            point(14, fitness=Fitness.GONE),
            point(13, fitness=Fitness.REFUSED),
            point(15, fitness=Fitness.GONE, is_on_line=False),
            point(12),
            point(11, fitness=Fitness.GONE),
        ]
    )

    assert found.index == 3
    assert found.reason.endswith(
        "Newer, but not usable: checkpoint 14 of run 1 is gone, checkpoint 13 of run 1 is refused."
    )


def test_a_point_that_somebody_went_back_behind_is_not_recommended_again() -> None:
    left_behind, forked_from = point(20, is_on_line=False), point(5)

    found = recommended([left_behind, forked_from])

    assert found.index == 1


def test_a_point_beside_the_line_is_recommended_with_a_warning_where_nothing_else_is_left() -> None:
    found = recommended([point(20, is_on_line=False), point(5, fitness=Fitness.GONE)])

    assert found.index == 0
    assert "the newest run does not descend from it" in found.reason
    assert "Newer, but" not in found.reason


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "Nothing has been completed that a run could be restored from."),
        (1, "The only point cannot be used: gone, or refused when checked."),
        (3, "None of the 3 points can be used: gone, or refused when checked."),
    ],
)
def test_where_nothing_can_be_used_that_is_said(count: int, said: str) -> None:
    found = recommended([point(n, fitness=Fitness.REFUSED) for n in range(count)])

    assert (found.index, found.reason) == (None, said)


def point(number: int, **columns: Any) -> Candidate:
    values: dict[str, Any] = {"is_on_line": True, "fitness": Fitness.UNREAD, **columns}
    return Candidate(name=f"checkpoint {number} of run 1", completed_ms=number, **values)
