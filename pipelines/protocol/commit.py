"""Decides which prepared output of one sink subtask may become visible, and when.

Pure. Output prepared for checkpoint n is committed when n, or any later checkpoint, completes:
an aborted checkpoint's output lies before the cut of the next one. Every snapshot carries all
output that is not yet known to be committed, so that a recovery can commit it again.

Source: Flink, `CommitterOperator` / `CommittableCollector`; Sink V2.
"""

from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId


@dataclass(frozen=True, slots=True)
class Prepared:
    """Committables of one checkpoint, as the sink's writer returned them."""

    checkpoint_id: CheckpointId
    committables: tuple[object, ...]


class CommitLog:
    """Guarantee: nothing is released before a checkpoint that contains it has completed.

    Needs a writer whose `commit` is idempotent: a recovery releases `restored` at once.
    """

    def __init__(self, restored: tuple[Prepared, ...] = ()) -> None:
        self._pending: dict[CheckpointId, Prepared] = {}
        self._newest_prepared = NO_CHECKPOINT
        self._restored = restored

    def take_restored(self) -> tuple[Prepared, ...]:
        """What the restored checkpoint contains: commit it before anything is written."""
        restored, self._restored = self._restored, ()
        return restored

    def on_prepared(
        self, checkpoint_id: CheckpointId, committables: list[object]
    ) -> tuple[Prepared, ...]:
        """Returns all that the snapshot of `checkpoint_id` must carry."""
        check(
            checkpoint_id > self._newest_prepared,
            "checkpoints are prepared in order, each once",
            checkpoint_id=checkpoint_id,
        )
        self._newest_prepared = checkpoint_id
        if committables:
            self._pending[checkpoint_id] = Prepared(checkpoint_id, tuple(committables))
        return tuple(self._pending.values())

    def on_completed(self, checkpoint_id: CheckpointId) -> tuple[Prepared, ...]:
        """Returns what may be committed now, oldest first. Repeated completions are harmless."""
        due = tuple(p for p in self._pending.values() if p.checkpoint_id <= checkpoint_id)
        for prepared in due:
            del self._pending[prepared.checkpoint_id]
        return due

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        ids = list(self._pending)
        check(ids == sorted(ids), "prepared output is in the order of its checkpoints", ids=ids)
        check(all(n <= self._newest_prepared for n in ids), "what is pending was prepared")
        is_filled = all(prepared.committables for prepared in self._pending.values())
        check(is_filled, "what is pending has something to commit", ids=ids)
