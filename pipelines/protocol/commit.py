"""Decides which attempt may send and commit for a run, and when output may become visible.

Pure. Attempts are fencing numbers (Kleppmann, "How to do distributed locking", 2016): each is
allocated once, and they only grow. The holder of an older number is a zombie. The fence refuses it,
which is a normal outcome and is reported.

Output prepared for checkpoint n is committed when n, or any later checkpoint, completes: an aborted
checkpoint's output lies before the cut of the next one. Every snapshot carries all output that is
not yet known to be committed, so that a recovery can commit it again.

The ledger counts and digests the rows that the subtask was given for each checkpoint. It keeps them
by the same rule: every snapshot carries the share of checkpoint n until n or a later checkpoint is
known to be complete. A recovery begins with an empty ledger, because the point it goes back to
contains all earlier shares.

Source: Flink, `CommitterOperator` / `CommittableCollector`; Sink V2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId
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
        """Returns what the restored checkpoint contains: commit it before anything is written."""
        restored, self._restored = self._restored, ()
        return restored

    def on_prepared(
        self, checkpoint_id: CheckpointId, committables: list[object]
    ) -> tuple[Prepared, ...]:
        """Returns everything that the snapshot of `checkpoint_id` must carry."""
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
        """A `digest` of None means that all rows of this checkpoint are only counted."""
        self._rows += rows
        known = None not in (self._digest, digest)
        self._digest = ((self._digest or 0) + (digest or 0)) % DIGEST_MODULUS if known else None

    def on_prepared(
        self, checkpoint_id: CheckpointId, tokens: Sequence[str]
    ) -> tuple[OutputShare, ...]:
        """Returns every share that the snapshot of `checkpoint_id` must carry, oldest first."""
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
        """Drops the shares in the completed snapshot; repeated completions are harmless."""
        for each in [each for each in self._pending if each <= checkpoint_id]:
            del self._pending[each]

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        ids = list(self._pending)
        check(ids == sorted(ids), "shares are in the order of their checkpoints", ids=ids)
        has_content = all(share.rows or share.tokens for share in self._pending.values())
        check(has_content, "a share has rows or output", ids=ids)
        check(self._rows >= 0, "rows are counted", rows=self._rows)


@dataclass(frozen=True, slots=True)
class Stale:
    """The sender belongs to an attempt that is over; `is_replaced` if a newer one has begun."""

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
        """The newest attempt is over, too: every sender is stale until the next one begins."""
        self._is_over = True

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(self._current > 0 or self._is_over, "no attempt runs before the first")

    def admit(self, attempt: Attempt) -> Stale | None:
        """Returns None if the sender is current. An attempt from the future is a bug."""
        check(attempt <= self._current, "no message comes from a future attempt", attempt=attempt)
        is_newest = attempt == self._current
        if is_newest and not self._is_over:
            return None
        return Stale(attempt, is_replaced=not is_newest)

    def permit_commit(self, attempt: Attempt, checkpoint_id: CheckpointId) -> CommitPermit | Stale:
        return self.admit(attempt) or CommitPermit(attempt, checkpoint_id)
