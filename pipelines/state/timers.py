"""Timers per key: each is registered for a time, and fires once when that time has come.

Event-time and processing-time timers have one table each, with keys only. So they are in every
snapshot, and follow their key group to another parallelism. Source: Flink's
`InternalTimerServiceImpl`; ours takes all due timers of all keys together.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from pipelines.domain.origins import Firing
from pipelines.state.backend import Rows
from pipelines.state.entries import KeyedStateContext, distinct_rows, with_column

TIMESTAMP = "__timestamp_ms"
KEY_CHARS_MAX = 200
"""The most characters of a key that a described timer shows."""
_NO_VALUES = pa.schema([])


class TimeDomain(StrEnum):
    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


@dataclass(frozen=True, slots=True)
class FiredTimers:
    """Timers that fired, sorted by timestamp. A key may occur with several timestamps."""

    domain: TimeDomain
    keys: pa.RecordBatch
    timestamps_ms: Rows

    def described(self, row: int) -> Firing:
        """Describes the timer that caused a failure; -1 means that it is unknown which one did."""
        count = self.keys.num_rows
        what = "time" if self.domain is TimeDomain.EVENT_TIME else "processing time"
        if row < 0 and count > 1:
            first, last = moment_text(self.timestamps_ms[0]), moment_text(self.timestamps_ms[-1])
            return Firing(f"in one of {count} timers at {what} {first} to {last}")
        row = max(row, 0)
        values = [column[row].as_py() for column in self.keys.columns]
        key = repr(values[0] if len(values) == 1 else tuple(values))
        shown = key if len(key) <= KEY_CHARS_MAX else f"{key[:KEY_CHARS_MAX]}…"
        moment = moment_text(self.timestamps_ms[row])
        return Firing(f"in a timer of key {shown} at {what} {moment}", is_one_timer=True)


class Timers:
    def __init__(self, context: KeyedStateContext, domain: TimeDomain) -> None:
        moment = pa.schema([(TIMESTAMP, pa.int64())])
        self._domain = domain
        self._key_names = context.key.names
        self._table = context.table(f"timers.{domain}", moment, _NO_VALUES, {})

    def __len__(self) -> int:
        return len(self._table)

    def register(self, keys: pa.RecordBatch, timestamps_ms: Rows) -> None:
        """Registering the same timer again has no effect."""
        self._table.rows_for(_moments(keys, timestamps_ms))

    def delete(self, keys: pa.RecordBatch, timestamps_ms: Rows) -> None:
        """Has no effect on a timer that was never registered or has fired."""
        rows = self._table.find(_moments(keys, timestamps_ms))
        self._table.delete(distinct_rows(rows))

    def take_due(self, time_ms: int) -> FiredTimers | None:
        """Remove and return the timers for `time_ms` and before; None if there are none."""
        rows = self._table.select_at_most(TIMESTAMP, time_ms)
        if not len(rows):
            return None
        due = self._table.keys(rows)
        self._table.delete(rows)
        # Sorted by key too, so that equal states fire their timers in the same order.
        order = [(TIMESTAMP, "ascending"), *((name, "ascending") for name in self._key_names)]
        due = due.sort_by(order)
        timestamps_ms = due.column(TIMESTAMP).to_numpy()
        return FiredTimers(self._domain, due.select(self._key_names), timestamps_ms)


def moment_text(timestamp_ms: int) -> str:
    """Formats any 64-bit number of milliseconds since the epoch as text in UTC."""
    return f"{np.datetime64(int(timestamp_ms), 'ms')}Z"


def _moments(keys: pa.RecordBatch, timestamps_ms: Rows) -> pa.RecordBatch:
    return with_column(keys, TIMESTAMP, pa.array(timestamps_ms.astype(np.int64, copy=False)))
