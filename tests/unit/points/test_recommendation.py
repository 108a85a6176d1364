"""The recommended point is the newest usable one on the line of the newest run."""

import random
from typing import Any

import pytest

from pipelines.points.verdict import Candidate, Fitness, recommended


@pytest.mark.parametrize("seed", range(100))
def test_the_recommended_point_is_usable_and_no_better_one_exists(seed: int) -> None:
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


def test_the_reason_states_the_replay_and_that_the_point_was_verified() -> None:
    verified = point(12, fitness=Fitness.VERIFIED, records_to_replay=1_234)

    found = recommended([verified, point(11)])

    assert found.reason == (
        "Checkpoint 12 of run 1 is the newest usable point, so the least input is read again: about"
        " 1,234 records. All of its files were verified and match their digests."
    )


def test_the_reason_for_an_unverified_point_says_that_a_restore_verifies_it() -> None:
    found = recommended([point(12, records_to_replay=1)])

    assert "so the least input is read again: about 1 record. Not verified since" in found.reason
    assert "the restore verifies it before it starts." in found.reason


def test_newer_unusable_points_are_named_with_the_reason() -> None:
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


def test_a_point_abandoned_by_a_restore_is_not_recommended_again() -> None:
    left_behind, forked_from = point(20, is_on_line=False), point(5)

    found = recommended([left_behind, forked_from])

    assert found.index == 1


def test_a_point_off_the_line_is_recommended_with_a_warning_as_last_resort() -> None:
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
def test_says_so_if_no_point_is_usable(count: int, said: str) -> None:
    found = recommended([point(n, fitness=Fitness.REFUSED) for n in range(count)])

    assert (found.index, found.reason) == (None, said)


def point(number: int, **columns: Any) -> Candidate:
    values: dict[str, Any] = {"is_on_line": True, "fitness": Fitness.UNREAD, **columns}
    return Candidate(name=f"checkpoint {number} of run 1", completed_ms=number, **values)
