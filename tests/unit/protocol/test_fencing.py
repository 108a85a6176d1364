"""Fencing: only the newest attempt speaks and commits."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.protocol.commit import AttemptFence, CommitPermit, Stale


@pytest.mark.parametrize("seed", range(50))
def test_only_the_newest_attempt_is_admitted_and_permitted(seed: int) -> None:
    rng = random.Random(seed)
    fence = AttemptFence()
    attempts: list[Attempt] = []
    for _ in range(20):
        attempts.append(Attempt(fence.current + rng.randint(1, 3)))
        fence.on_attempt(attempts[-1])
        speaker = rng.choice(attempts)

        admitted = fence.admit(speaker)
        permit = fence.permit_commit(speaker, CheckpointId(7))

        is_current = speaker == attempts[-1]
        assert admitted == (None if is_current else Stale(speaker))
        assert permit == (CommitPermit(speaker, CheckpointId(7)) if is_current else Stale(speaker))


def test_no_attempt_is_admitted_between_two_attempts() -> None:
    fence = AttemptFence()
    before_the_first = fence.admit(Attempt(0))
    fence.on_attempt(Attempt(1))
    fence.on_ended()

    assert before_the_first == Stale(Attempt(0), is_replaced=False)
    assert fence.admit(Attempt(1)) == Stale(Attempt(1), is_replaced=False)
    assert fence.admit(Attempt(0)) == Stale(Attempt(0), is_replaced=True)
    assert isinstance(fence.permit_commit(Attempt(1), CheckpointId(7)), Stale)
    assert fence.current == 1


@pytest.mark.parametrize("repeated", [1, 2])
def test_attempt_numbers_only_grow(repeated: int) -> None:
    fence = AttemptFence()
    fence.on_attempt(Attempt(2))

    with pytest.raises(InvariantViolated):
        fence.on_attempt(Attempt(repeated))

    assert fence.current == 2


def test_speaking_for_a_future_attempt_is_a_bug() -> None:
    fence = AttemptFence()
    fence.on_attempt(Attempt(1))

    with pytest.raises(InvariantViolated):
        fence.admit(Attempt(2))
    with pytest.raises(InvariantViolated):
        fence.permit_commit(Attempt(2), CheckpointId(1))
