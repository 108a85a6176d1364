"""Decides which attempt may speak and commit for a run: only the newest one.

Pure. Attempts are fencing numbers (Kleppmann, "How to do distributed locking", 2016): allocated
once each, growing. The holder of an older number is a zombie. The fence refuses it, which is a
normal outcome and is reported.
"""

from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import Attempt, CheckpointId


@dataclass(frozen=True, slots=True)
class Stale:
    """The speaker belongs to an attempt that is over; `is_replaced`: a newer one has begun."""

    attempt: Attempt
    is_replaced: bool = True


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that checkpoint `checkpoint_id` is durable and its attempt was the current one.

    Only `AttemptFence.permit_commit` makes one. It goes to the slots with the order to commit, and
    every sink's commit takes it as an argument.
    """

    attempt: Attempt
    checkpoint_id: CheckpointId


class AttemptFence:
    """The one place that knows the current attempt; every receiver of a message asks here first."""

    def __init__(self) -> None:
        self._current = Attempt(0)
        self._is_over = True

    @property
    def current(self) -> Attempt:
        return self._current

    def on_attempt(self, attempt: Attempt) -> None:
        """Raises InvariantViolated unless the number grew."""
        check(attempt > self._current, "fencing numbers only grow", attempt=attempt)
        self._current = attempt
        self._is_over = False

    def on_ended(self) -> None:
        """The newest attempt is over, too: every speaker is stale until the next one begins."""
        self._is_over = True

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(self._current > 0 or self._is_over, "no attempt runs before the first")

    def admit(self, attempt: Attempt) -> Stale | None:
        """None: the speaker is current. An attempt from the future is a bug."""
        check(attempt <= self._current, "no message comes from a future attempt", attempt=attempt)
        is_newest = attempt == self._current
        if is_newest and not self._is_over:
            return None
        return Stale(attempt, is_replaced=not is_newest)

    def permit_commit(self, attempt: Attempt, checkpoint_id: CheckpointId) -> CommitPermit | Stale:
        return self.admit(attempt) or CommitPermit(attempt, checkpoint_id)
