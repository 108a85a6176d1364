"""Which keys an exchange sends most of its records to: a bounded sample of what passes now.

A busy key keeps one subtask busy while its neighbours wait. The sample names it. It costs a slice
of hashes that the exchange has computed anyway, for at most `ROWS_PER_PERIOD` rows in each half
second; the values of keys are copied only where the settings show records.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.domain.events import HotKeys
from pipelines.domain.ids import Uid
from pipelines.domain.texts import masked
from pipelines.state.hashing import Hashes, key_groups

PERIOD_MS = 500.0
ROWS_PER_PERIOD = 512
PERIODS = 10
ROWS_MIN = 100
"""Fewer rows say nothing about shares."""

HOT_FROM = 0.1
"""A group below this share of all records keeps no subtask busy by itself."""

NAMED_MAX = 3
KEY_CHARS_MAX = 60

_Chunk = tuple[Hashes, pa.RecordBatch | None]


class KeySampler:
    """One thread adds, and another may read at any time."""

    def __init__(
        self,
        vertex: Uid,
        columns: tuple[str, ...],
        max_parallelism: int,
        now_ms: Callable[[], float],
        *,
        shows_keys: bool,
    ) -> None:
        """`vertex`: where the records go. `now_ms`: monotonic."""
        self._vertex = vertex
        self._columns = columns
        self._max_parallelism = max_parallelism
        self._now_ms = now_ms
        self._shows_keys = shows_keys
        self._period_until_ms = 0.0
        self._wanted_rows = 0  # in this period
        self._newest: list[_Chunk] = []
        self._periods: deque[list[_Chunk]] = deque(maxlen=PERIODS)

    def on_batch(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """`hashes`: of the keys, one per row. Most calls compare two numbers."""
        now_ms = self._now_ms()
        if now_ms >= self._period_until_ms:
            self._period_until_ms = now_ms + PERIOD_MS
            self._wanted_rows = ROWS_PER_PERIOD
            self._newest = []
            self._periods.append(self._newest)
        if self._wanted_rows <= 0 or not len(hashes):
            return
        step = -(-len(hashes) // self._wanted_rows)
        taken = hashes[::step].copy()  # a view would keep all hashes of the batch
        self._wanted_rows -= len(taken)
        self._newest.append((taken, self._keys(batch, step)))

    def hottest(self) -> HotKeys | None:
        """Over about the last five seconds. None: too few records passed, or no group is hot."""
        chunks = [chunk for period in list(self._periods) for chunk in list(period)]
        if sum(len(hashes) for hashes, _ in chunks) < ROWS_MIN:
            return None
        hashes = np.concatenate([each for each, _ in chunks])
        rows = len(hashes)
        per_group = np.bincount(key_groups(hashes, self._max_parallelism))
        hot = np.argsort(per_group, kind="stable")[::-1][:NAMED_MAX]
        if per_group[hot[0]] < HOT_FROM * rows:
            return None
        return HotKeys(
            vertex=self._vertex,
            columns=list(self._columns),
            sampled=rows,
            groups=[(int(g), round(int(per_group[g]) / rows, 3)) for g in hot if per_group[g]],
            keys=self._named(hashes, chunks) if self._shows_keys else [],
        )

    def _keys(self, batch: pa.RecordBatch, step: int) -> pa.RecordBatch | None:
        if not self._shows_keys:
            return None
        keys = batch.select(list(self._columns))
        return keys.take(pa.array(np.arange(0, batch.num_rows, step)))

    def _named(self, hashes: Hashes, chunks: list[_Chunk]) -> list[tuple[str, float]]:
        distinct, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        del distinct
        hot = np.argsort(counts, kind="stable")[::-1][:NAMED_MAX]
        keys = pa.Table.from_batches([each for _, each in chunks if each is not None])
        return [(_text(keys, int(first[i])), round(int(counts[i]) / len(hashes), 3)) for i in hot]


def _text(keys: pa.Table, row: int) -> str:
    values = ", ".join(str(column[row].as_py()) for column in keys.columns)
    return masked(values)[:KEY_CHARS_MAX]
