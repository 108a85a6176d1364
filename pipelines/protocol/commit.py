"""Decides which prepared output of one sink subtask may become visible, and when; counts its rows.

Pure. Output prepared for checkpoint n is committed when n, or any later checkpoint, completes:
an aborted checkpoint's output lies before the cut of the next one. Every snapshot carries all
output that is not yet known to be committed, so that a recovery can commit it again.

The rows that the subtask was given for each checkpoint are counted and digested by the same rule:
every snapshot carries the share of checkpoint n until n or a later checkpoint is known to be
complete. There a recovery begins empty, since the point it goes back to has all earlier shares.

Source: Flink, `CommitterOperator` / `CommittableCollector`; Sink V2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.ledger import OutputShare


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


DIGEST_MODULUS = 1 << 64


class OutputLedger:
    """Guarantee: the shares in the snapshots of completed checkpoints, each counted once, cover
    exactly the rows that were given before the newest of them.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._digest: int | None = 0
        self._pending: dict[CheckpointId, OutputShare] = {}

    def on_given(self, rows: int, digest: int | None) -> None:
        """`digest` None: these rows are only counted, and so are all others of their checkpoint."""
        self._rows += rows
        known = None not in (self._digest, digest)
        self._digest = ((self._digest or 0) + (digest or 0)) % DIGEST_MODULUS if known else None

    def on_prepared(
        self, checkpoint_id: CheckpointId, tokens: Sequence[str]
    ) -> tuple[OutputShare, ...]:
        """Returns all that the snapshot of `checkpoint_id` must carry, oldest first."""
        if self._rows or tokens:
            self._pending[checkpoint_id] = OutputShare(
                checkpoint_id=checkpoint_id,
                rows=self._rows,
                digest=None if self._digest is None else f"{self._digest:016x}",
                tokens=list(tokens),
            )
        self._rows, self._digest = 0, 0
        return tuple(self._pending.values())

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """The completed snapshot has them; repeated completions are harmless."""
        for each in [each for each in self._pending if each <= checkpoint_id]:
            del self._pending[each]

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        ids = list(self._pending)
        check(ids == sorted(ids), "shares are in the order of their checkpoints", ids=ids)
        has_content = all(share.rows or share.tokens for share in self._pending.values())
        check(has_content, "a share has rows or output", ids=ids)
        check(self._rows >= 0, "rows are counted", rows=self._rows)
