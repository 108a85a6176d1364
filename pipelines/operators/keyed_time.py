"""How far event time has come, for the rows of each key.

That is the subtask's watermark, except after some restores: where a cut was taken while the
subtasks had come unequally far (barriers that overtake, or at least once), a new subtask begins at
the least of them, and some of its keys have been further already. What was emitted for those is not
to be emitted again, and what was late is late.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.elements import MIN_WATERMARK_MS
from pipelines.operators.columns import Longs
from pipelines.operators.operator import OperatorContext
from pipelines.state.hashing import key_groups, key_hashes


class KeyedTime:
    """Guarantee: for no key does it go back, whatever happens to subtasks."""

    def __init__(self, context: OperatorContext, keys: tuple[str, ...]) -> None:
        self.watermark_ms = context.restored_watermark_ms
        self._keys = keys
        self._restored = context.restored_times_ms

    def advance(self, watermark_ms: int) -> None:
        """What was restored is asked once more by whatever this makes due, and then forgotten."""
        if self._restored is not None and self.watermark_ms >= self._restored.max():
            self._restored = None
        self.watermark_ms = watermark_ms

    @property
    def newest_ms(self) -> int:
        """No key has come further."""
        restored = self._restored
        return self.watermark_ms if restored is None else max(self.watermark_ms, restored.max())

    def of(self, rows: pa.RecordBatch) -> Longs:
        """One time per row, or a single one for all."""
        return np.maximum(self.restored_of(rows), np.int64(self.watermark_ms))

    def restored_of(self, rows: pa.RecordBatch) -> Longs:
        """How far the key of each row had come at the cut; of use only while others catch up."""
        restored = self._restored
        if restored is None:
            return _NEVER
        groups = key_groups(key_hashes(rows, self._keys), len(restored))
        return np.asarray(restored[groups])


_NEVER: Longs = np.array([MIN_WATERMARK_MS], np.int64)
