"""Retention: the newest points are kept, and only people delete savepoints."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import ExternalizedRetention as Retention
from pipelines.domain.status import JobStatus
from pipelines.protocol.retention import RetainedPoint, RetainedPoints


@pytest.mark.parametrize("seed", range(200))
def test_the_newest_points_and_all_savepoints_are_never_deleted(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 4)
    retained = RetainedPoints(count)
    usable: list[RetainedPoint] = []
    refused: set[RetainedPoint] = set()

    for number in range(1, 30):
        added = point(number, is_savepoint=rng.random() < 0.25)
        usable.append(added)
        deleted = retained.on_completed(added)
        usable = [p for p in usable if p not in deleted]

        checkpoints = [p for p in usable if not p.is_savepoint]
        assert not any(p.is_savepoint for p in deleted)
        assert all(p.checkpoint_id < q.checkpoint_id for p in deleted for q in checkpoints)
        assert len(checkpoints) == count or (not deleted and len(checkpoints) < count)
        assert retained.newest_first() == usable[::-1]
        refused = {p for p in refused if p not in deleted}
        assert len(checkpoints) < count or not any(
            p.checkpoint_id < checkpoints[0].checkpoint_id for p in refused if not p.is_savepoint
        )
        if rng.random() < 0.1:
            refused.add(one := usable.pop(rng.randrange(len(usable))))
            retained.on_damaged(one, "torn")


def test_restored_points_count_and_are_deleted_oldest_first() -> None:
    retained = RetainedPoints(2, (point(3), point(1), point(2)))

    assert retained.newest_first() == [point(3), point(2), point(1)]
    assert retained.on_completed(point(4)) == [point(1), point(2)]


def test_a_claimed_point_counts_as_the_oldest_and_is_deleted_first() -> None:
    claimed = RetainedPoint(CheckpointId(99), "/other/99", is_claimed=True)
    retained = RetainedPoints(2, (point(1), claimed))

    assert retained.newest_first() == [point(1), claimed]
    assert retained.on_completed(point(2)) == [claimed]
    assert retained.newest_first() == [point(2), point(1)]


def test_a_damaged_point_is_offered_last_and_does_not_count_as_retained() -> None:
    retained = RetainedPoints(2, (point(1), point(2)))

    retained.on_damaged(point(2), "torn")

    assert retained.newest_first() == [point(1)]
    assert retained.candidates() == [point(1), point(2)]
    assert retained.every_newest_first() == [point(2), point(1)]
    assert (retained.damage_of(point(2)), retained.damage_of(point(1))) == ("torn", None)
    assert retained.on_completed(point(3)) == []


def test_a_damaged_point_is_deleted_at_its_usual_turn_and_not_before() -> None:
    retained = RetainedPoints(2, (point(1), point(2), point(3)))
    retained.on_damaged(point(2), "torn")

    kept = retained.newest_first()
    superfluous = [retained.on_completed(point(number)) for number in (4, 5)]

    assert kept == [point(3), point(1)]
    assert superfluous == [[point(1), point(2)], [point(3)]]


def test_a_run_that_retains_nothing_deletes_damaged_points_too() -> None:
    retained = RetainedPoints(2, (point(1), point(2)))
    retained.on_damaged(point(1), "torn")

    nothing = Retention.NO_EXTERNALIZED_CHECKPOINTS

    assert retained.on_run_ended(JobStatus.CANCELED, nothing) == [point(1), point(2)]


def test_if_all_points_are_damaged_all_are_offered_and_kept() -> None:
    retained = RetainedPoints(2, (point(1), point(2)))

    for number in (1, 2):
        retained.on_damaged(point(number), "torn")

    assert retained.newest_first() == []
    assert retained.candidates() == [point(2), point(1)]
    assert retained.on_completed(point(3)) == []


def test_a_repaired_point_is_offered_as_before() -> None:
    retained = RetainedPoints(2, (point(1), point(2)))
    retained.on_damaged(point(2), "torn")

    retained.on_whole(point(2))

    assert retained.candidates() == [point(2), point(1)]


def test_a_point_damaged_at_its_completion_replaces_no_older_one() -> None:
    retained = RetainedPoints(1, (point(1),))

    assert retained.on_completed(point(2), "it refers to a damaged file") == []
    assert retained.candidates() == [point(1), point(2)]


@pytest.mark.parametrize(
    ("policy", "left_by"),
    [
        (Retention.RETAIN_ON_CANCELLATION, [JobStatus.CANCELED, JobStatus.FAILED]),
        (Retention.DELETE_ON_CANCELLATION, [JobStatus.FAILED]),
        (Retention.NO_EXTERNALIZED_CHECKPOINTS, []),
    ],
)
def test_the_end_of_a_run_keeps_points_as_in_flink_and_every_savepoint(
    policy: Retention, left_by: list[JobStatus]
) -> None:
    for status in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED):
        savepoint = point(2, is_savepoint=True)
        claimed = RetainedPoint(CheckpointId(9), "/points/claimed", is_claimed=True)
        retained = RetainedPoints(3, (point(1), savepoint, point(3), claimed))

        superfluous = retained.on_run_ended(status, policy)

        kept = status in left_by
        assert superfluous == ([] if kept else [point(1), point(3)])
        left = [point(3), savepoint, point(1)] if kept else [savepoint]
        assert retained.newest_first() == [*left, claimed]


def test_retaining_zero_points_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        RetainedPoints(0)


def point(number: int, *, is_savepoint: bool = False) -> RetainedPoint:
    return RetainedPoint(CheckpointId(number), f"/points/{number}", is_savepoint)
