"""One side of a join: its rows as durable state, and an index of them that is built from it.

The index is made when the first element arrives, after a restore has loaded the rows, and lives in
memory beside the state: a join needs about twice the memory of its rows.
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, by_value, longs
from pipelines.operators.row_index import RowIndex
from pipelines.operators.row_lists import row_list
from pipelines.state.backend import StateBackend


class TimedSide:
    """Rows with event time, kept by buckets of time, so that old ones go bucket by bucket."""

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
        """Forget rows older than that; those of the bucket in which it lies stay a while."""
        self.index.drop_before(time_ms)
        for bucket in self._rows.namespaces_at_most(time_ms - self._bucket_ms):
            self._rows.pop(bucket)


class KeptSide:
    """Rows that are kept for ever."""

    def __init__(
        self, state: StateBackend, name: str, schema: pa.Schema, keys: tuple[str, ...]
    ) -> None:
        self._keys = keys
        self._rows = state.batch_list(row_list(name, schema, keys))
        self._index: RowIndex | None = None

    @property
    def index(self) -> RowIndex:
        if self._index is None:
            self._index = RowIndex(self._keys)
            for batch in self._rows.pop(0):
                self._keep(self._index, batch)
        return self._index

    def add(self, rows: pa.RecordBatch) -> None:
        self._keep(self.index, rows)

    def _keep(self, index: RowIndex, rows: pa.RecordBatch) -> None:
        self._rows.append(0, rows)
        index.add(rows, np.zeros(rows.num_rows, np.int64))


_EVER = 2**62
