"""Decides what the next increment of a state may build on: the newest completed checkpoint.

Pure. A checkpoint that was only acknowledged may still fail and lose its files, so no increment
builds on it (Flink, FLINK-25395). One older than the newest completed may be discarded at any time.
"""

from typing import Generic, TypeVar

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId

T = TypeVar("T")


class CompletedIncrements(Generic[T]):
    """Guarantee: `base` is what was written for the newest checkpoint known to be complete.

    `restored` is what the attempt started from, if it took over the run's own checkpoint as it is.
    Needs `on_written` before the checkpoint can complete; acknowledging afterwards ensures that.
    """

    def __init__(self, restored: T | None = None) -> None:
        self._base = restored
        self._base_id = NO_CHECKPOINT
        self._written: dict[CheckpointId, T | None] = {}

    @property
    def base(self) -> T | None:
        return self._base

    def on_written(self, checkpoint_id: CheckpointId, increment: T | None) -> None:
        """None: the state was empty, so there is nothing to build on."""
        self._written[checkpoint_id] = increment

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """Repeated, late and unknown ids change nothing; a savepoint's id is unknown."""
        if checkpoint_id not in self._written or checkpoint_id < self._base_id:
            return
        self._base, self._base_id = self._written[checkpoint_id], checkpoint_id
        self._written = {n: each for n, each in self._written.items() if n > checkpoint_id}

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        newer = all(n > self._base_id for n in self._written)
        check(newer, "nothing older than the base is kept", base_id=self._base_id)

    def on_damaged(self) -> None:
        """The base cannot be trusted, nor what was written since, which may refer to it."""
        self._base = None
        self._written = {}

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._written.pop(checkpoint_id, None)
