"""How far event time has come for the key of each row.

Normally that is the subtask's watermark. It is not after some restores: the subtasks may have come
unequally far at the cut (with barriers that overtake, or at least once). A new subtask then begins
at the least of their times, although some of its keys had been further. For those keys, results
that were emitted must not be emitted again, and rows that were late stay late.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.elements import MIN_WATERMARK_MS
from pipelines.operators.columns import Longs
from pipelines.operators.operator import OperatorContext
from pipelines.state.hashing import key_groups, key_hashes


class KeyedTime:
    """Guarantee: event time goes back for no key, even if subtasks are restored or rescaled."""

    def __init__(self, context: OperatorContext, keys: tuple[str, ...]) -> None:
        self.watermark_ms = context.restored_watermark_ms
        self._keys = keys
        self._restored = context.restored_times_ms

    def advance(self, watermark_ms: int) -> None:
        """Results that this makes due still use the restored times; then they are forgotten."""
        if self._restored is not None and self.watermark_ms >= self._restored.max():
            self._restored = None
        self.watermark_ms = watermark_ms

    @property
    def newest_ms(self) -> int:
        """The time that no key has passed."""
        restored = self._restored
        return self.watermark_ms if restored is None else max(self.watermark_ms, restored.max())

    def of(self, rows: pa.RecordBatch) -> Longs:
        """One time per row, or a single time for all rows."""
        return np.maximum(self.restored_of(rows), np.int64(self.watermark_ms))

    def restored_of(self, rows: pa.RecordBatch) -> Longs:
        """How far the key of each row had come at the cut; matters only until others catch up."""
        restored = self._restored
        if restored is None:
            return _NEVER
        groups = key_groups(key_hashes(rows, self._keys), len(restored))
        return np.asarray(restored[groups])


_NEVER: Longs = np.array([MIN_WATERMARK_MS], np.int64)
