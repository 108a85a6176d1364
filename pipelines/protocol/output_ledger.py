"""Counts and digests the rows that one sink subtask was given for each checkpoint.

Pure. As with committables (`protocol.commit`), every snapshot carries the share of checkpoint n
until n or a later checkpoint is known to be complete: an aborted checkpoint's output lies before
the cut of the next one. A recovery begins empty, since the point it goes back to has all earlier
shares.
"""

from collections.abc import Sequence

from pipelines.domain.ids import CheckpointId
from pipelines.domain.ledger import OutputShare

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
