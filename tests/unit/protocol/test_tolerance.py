"""Tolerance: which failed checkpoints count, how often, and what resets the count."""

import random

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.coordination import FailureTolerance

Reason = CheckpointFailureReason
COUNTED = Reason.CHECKPOINT_ASYNC_EXCEPTION


@pytest.mark.parametrize("seed", range(200))
def test_too_many_failures_in_a_row_exceed_the_tolerance(seed: int) -> None:
    rng = random.Random(seed)
    tolerance = FailureTolerance(tolerable := rng.randint(0, 3))
    failed_in_a_row: set[int] = set()
    newest_completed = 0

    for number in range(1, 60):
        if rng.random() < 0.2:
            tolerance.on_completed(CheckpointId(number))
            failed_in_a_row, newest_completed = set(), number
            continue
        late = rng.choice([number, number, rng.randint(1, number)])
        reason = rng.choice([COUNTED, COUNTED, Reason.CHECKPOINT_SUBSUMED])
        exceeded = fails(tolerance, late, reason)
        if reason is COUNTED and late >= newest_completed:
            failed_in_a_row.add(late)
        assert exceeded == (len(failed_in_a_row) > tolerable), number
        failed_in_a_row = set() if exceeded else failed_in_a_row


def test_one_checkpoint_counts_once_however_many_subtasks_failed_it() -> None:
    tolerance = FailureTolerance(1)

    assert [fails(tolerance, 1, COUNTED) for _ in range(5)] == [False] * 5
    assert fails(tolerance, 2, COUNTED)


def test_a_failure_older_than_the_newest_completed_checkpoint_does_not_count() -> None:
    tolerance = FailureTolerance(0)
    tolerance.on_completed(CheckpointId(5))

    assert not fails(tolerance, 4, COUNTED)
    assert fails(tolerance, 6, COUNTED)


def test_a_savepoint_counts_only_when_a_subtask_failed_it() -> None:
    tolerance = FailureTolerance(0)

    assert not fails(tolerance, 1, Reason.CHECKPOINT_EXPIRED, is_savepoint=True, by_subtask=False)
    assert fails(tolerance, 2, COUNTED, is_savepoint=True)


def test_after_giving_up_the_count_starts_over() -> None:
    tolerance = FailureTolerance(1)

    outcomes = [fails(tolerance, number, COUNTED) for number in range(1, 5)]

    assert outcomes == [False, True, False, True]


def test_all_of_flinks_failure_reasons_exist_and_count_as_in_flink() -> None:
    counted = {reason.name for reason in Reason if reason.counts_against_tolerance}

    assert len(set(Reason) - {Reason.DAMAGED_FILE}) == 24
    assert counted == {
        "IO_EXCEPTION",
        "CHECKPOINT_ASYNC_EXCEPTION",
        "CHECKPOINT_EXPIRED",
        "CHECKPOINT_DECLINED",
        "FINALIZE_CHECKPOINT_FAILURE",
    }


def fails(
    tolerance: FailureTolerance,
    number: int,
    reason: Reason,
    *,
    is_savepoint: bool = False,
    by_subtask: bool = True,
) -> bool:
    return tolerance.is_exceeded_by(
        CheckpointId(number), reason, is_savepoint=is_savepoint, by_subtask=by_subtask
    )
