"""Rows that are kept whole until their windows are over, once each, by pane.

A pane is a span of event time whose rows share all their windows, or that no session can divide;
which one is the caller's affair.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, by_value, single_batch
from pipelines.operators.row_lists import row_list
from pipelines.state.backend import StateBackend

Panes = dict[int, list[pa.RecordBatch]]
"""By the beginning of the pane; ascending."""


class PaneRows:
    """The state `name` of an operator: rows of `schema`, which has event time."""

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
        """Rows with the pane of each."""
        for pane, of_pane in by_value(rows, panes):
            self._rows.append(pane, of_pane)

    def held(self, newest: int) -> Longs:
        """The panes up to that one that hold rows, ascending."""
        return np.array(self._rows.namespaces_at_most(newest), np.int64)

    def take(self, newest: int) -> Panes:
        """Remove and return what lies in the panes up to that one."""
        return {pane: self._rows.pop(pane) for pane in self._rows.namespaces_at_most(newest)}

    def take_rows(self, newest: int) -> pa.RecordBatch:
        """`take`, as one batch: by pane, then in order of arrival."""
        return self.joined(self.take(newest).values())

    def put_back(self, panes: Panes) -> None:
        for pane, batches in panes.items():
            for batch in batches:
                self._rows.append(pane, batch)

    def joined(self, lists: Iterable[list[pa.RecordBatch]]) -> pa.RecordBatch:
        batches = [batch for batches in lists for batch in batches]
        return single_batch(pa.Table.from_batches(batches, self.schema))
