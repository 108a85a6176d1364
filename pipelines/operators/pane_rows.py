"""Rows that are kept whole, once each by pane, until their windows are over.

A pane is a span of event time whose rows share all their windows, or that no session can divide;
the caller decides which.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, by_value, single_batch
from pipelines.operators.row_lists import row_list
from pipelines.state.backend import StateBackend

Panes = dict[int, list[pa.RecordBatch]]
"""The rows of each pane by its beginning, ascending."""


class PaneRows:
    """The state `name` of an operator: rows of `schema`, which includes event time."""

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        time_column: str,
    ) -> None:
        self.schema = schema
        self._rows = state.batch_list(row_list(name, schema, keys, time_column))

    def add(self, rows: pa.RecordBatch, panes: Longs) -> None:
        """Adds rows; `panes` gives the pane of each."""
        for pane, of_pane in by_value(rows, panes):
            self._rows.append(pane, of_pane)

    def held(self, newest: int) -> Longs:
        """The panes up to `newest` that hold rows, ascending."""
        return np.array(self._rows.namespaces_at_most(newest), np.int64)

    def take(self, newest: int) -> Panes:
        """Remove and return the rows of the panes up to `newest`."""
        return {pane: self._rows.pop(pane) for pane in self._rows.namespaces_at_most(newest)}

    def take_rows(self, newest: int) -> pa.RecordBatch:
        """Like `take`, as one batch: by pane, then in order of arrival."""
        return self.joined(self.take(newest).values())

    def put_back(self, panes: Panes) -> None:
        for pane, batches in panes.items():
            for batch in batches:
                self._rows.append(pane, batch)

    def joined(self, lists: Iterable[list[pa.RecordBatch]]) -> pa.RecordBatch:
        batches = [batch for batches in lists for batch in batches]
        return single_batch(pa.Table.from_batches(batches, self.schema))
