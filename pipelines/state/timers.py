"""Timers per key: registered for a moment, fired when it has come, once per key and moment.

Event-time and processing-time timers are a table each, of keys alone, so they are in every
snapshot and follow their key group to another parallelism. Source: Flink's
`InternalTimerServiceImpl`; all due timers of all keys are taken together.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from pipelines.state.backend import Rows
from pipelines.state.entries import KeyedStateContext, distinct_rows, with_column

TIMESTAMP = "__timestamp_ms"
_NO_VALUES = pa.schema([])


class TimeDomain(StrEnum):
    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


@dataclass(frozen=True, slots=True)
class FiredTimers:
    """Sorted by timestamp. A key may be here with several of them."""

    domain: TimeDomain
    keys: pa.RecordBatch
    timestamps_ms: Rows


class Timers:
    def __init__(self, context: KeyedStateContext, domain: TimeDomain) -> None:
        moment = pa.schema([(TIMESTAMP, pa.int64())])
        self._domain = domain
        self._key_names = context.key.names
        self._table = context.table(f"timers.{domain}", moment, _NO_VALUES, {})

    def __len__(self) -> int:
        return len(self._table)

    def register(self, keys: pa.RecordBatch, timestamps_ms: Rows) -> None:
        """A timer that is registered again is one timer."""
        self._table.rows_for(_moments(keys, timestamps_ms))

    def delete(self, keys: pa.RecordBatch, timestamps_ms: Rows) -> None:
        """Nothing happens to a timer that was never registered or has fired."""
        rows = self._table.find(_moments(keys, timestamps_ms))
        self._table.delete(distinct_rows(rows))

    def take_due(self, time_ms: int) -> FiredTimers | None:
        """Remove and return the timers for `time_ms` and before; None if there are none."""
        rows = self._table.select_at_most(TIMESTAMP, time_ms)
        if not len(rows):
            return None
        due = self._table.keys(rows)
        self._table.delete(rows)
        # By key as well, so that the same state fires in the same order.
        order = [(TIMESTAMP, "ascending"), *((name, "ascending") for name in self._key_names)]
        due = due.sort_by(order)
        timestamps_ms = due.column(TIMESTAMP).to_numpy()
        return FiredTimers(self._domain, due.select(self._key_names), timestamps_ms)


def _moments(keys: pa.RecordBatch, timestamps_ms: Rows) -> pa.RecordBatch:
    return with_column(keys, TIMESTAMP, pa.array(timestamps_ms.astype(np.int64, copy=False)))
