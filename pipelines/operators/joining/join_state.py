"""One side of a join: its rows as durable state, and an index that is built from them.

The index is built when the first element arrives, after a restore has loaded the rows. It is in
memory in addition to the state, so a join needs about twice the memory of its rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, by_value, longs
from pipelines.operators.joining.row_index import Matches, RowIndex
from pipelines.operators.rows import row_list
from pipelines.state.backend import StateBackend


class TimedSide:
    """Rows with event time, kept in buckets of time, so that old ones are dropped by bucket."""

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        time_column: str,
        bucket_ms: int,
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._bucket_ms = bucket_ms
        self._rows = state.batch_list(row_list(name, schema, keys, time_column))
        self._index: RowIndex | None = None

    @property
    def index(self) -> RowIndex:
        if self._index is None:
            self._index = RowIndex(self._keys)
            for namespace in self._rows.namespaces_at_most(_EVER):
                for batch in self._rows.pop(namespace):
                    self._rows.append(namespace, batch)
                    self._index.add(batch, longs(batch.column(self._time_column)))
        return self._index

    def add(self, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self.index.add(rows, times_ms)
        for bucket, of_bucket in by_value(rows, times_ms - times_ms % self._bucket_ms):
            self._rows.append(bucket, of_bucket)

    def drop_before(self, time_ms: int) -> None:
        """Drop rows older than that; other rows of the bucket that contains it stay for a while."""
        self.index.drop_before(time_ms)
        for bucket in self._rows.namespaces_at_most(time_ms - self._bucket_ms):
            self._rows.pop(bucket)


class KeptSide:
    """Rows that are kept for ever, or for a time-to-live after they came.

    Rows are in buckets of processing time and are dropped with their whole bucket, so each stays
    for the time-to-live and up to a sixteenth of it more.
    """

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        ttl_ms: int | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._keys = keys
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms
        self._rows = state.batch_list(row_list(name, schema, keys))
        self._index: RowIndex | None = None

    @property
    def index(self) -> RowIndex:
        """If there was no time-to-live before, rows begin to age when it first applies."""
        if self._index is None:
            self._index = RowIndex(self._keys)
            for bucket, rows in self._taken():
                self._keep(self._index, bucket, rows)
        return self._index

    def add(self, rows: pa.RecordBatch) -> None:
        self._keep(self.index, self._bucket(), rows)

    def match(self, keys: pa.RecordBatch) -> Iterator[Matches]:
        if self._ttl_ms is None:
            return self.index.match(keys)
        earliest = np.full(keys.num_rows, self._newest_expired(self._ttl_ms) + 1, np.int64)
        return self.index.match(keys, earliest)

    def drop_expired(self) -> None:
        if self._ttl_ms is None:
            return
        expired = self._newest_expired(self._ttl_ms)
        self.index.drop_before(expired + 1)
        for bucket in self._rows.namespaces_at_most(expired):
            self._rows.pop(bucket)

    def _taken(self) -> list[tuple[int, pa.RecordBatch]]:
        """All rows, with the bucket into which each belongs."""
        namespaces = self._rows.namespaces_at_most(_EVER)
        return [
            (namespace or self._bucket(), rows)
            for namespace in namespaces
            for rows in self._rows.pop(namespace)
        ]

    def _keep(self, index: RowIndex, bucket: int, rows: pa.RecordBatch) -> None:
        self._rows.append(bucket, rows)
        index.add(rows, np.full(rows.num_rows, bucket, np.int64))

    def _bucket(self) -> int:
        if self._ttl_ms is None:
            return _KEPT_FOR_EVER
        now_ms = self._now_ms()
        return now_ms - now_ms % self._bucket_ms

    def _newest_expired(self, ttl_ms: int) -> int:
        """Buckets that begin at or before this time ended longer ago than the time-to-live."""
        return self._now_ms() - ttl_ms - self._bucket_ms

    @property
    def _bucket_ms(self) -> int:
        return max(1, (self._ttl_ms or 0) // _BUCKETS)


_EVER = 2**62
_KEPT_FOR_EVER = 0
_BUCKETS = 16
