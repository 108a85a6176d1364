"""Gives a stream an event time: a column, and watermarks that follow from it.

Also tells the event time that the key of each row has reached.

The event time of the input does not matter: its watermarks are dropped, except for the end of event
time, which no record follows. An idle input makes the output idle, and so does a silence of
`idle_after`, until the next record. Rows without a time pass; they do not advance event time, and
windows count them.

The runtime keeps the newest watermark in every snapshot, and restores the least of all subtasks, as
for a source. So event time does not wait after a recovery for records that were processed before
it. The generator starts again; its watermarks count once they are beyond the restored one.

For the key of a row, event time is normally the subtask's watermark. After some restores it is not:
the subtasks may have been at different times at the cut (with barriers that overtake records, or in
the mode at least once). A new subtask then begins at the least of their times, although some of its
keys were further ahead. For those keys, results that were emitted must not be emitted again, and
rows that were late stay late.

Source: Flink's `TimestampsAndWatermarksOperator`, which keeps no watermark in its snapshots.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.operators.columns import EVENT_TIME, Longs, field_of, longs
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.hashing import key_groups, key_hashes

_NEVER: Longs = np.array([MIN_WATERMARK_MS], np.int64)
TIMESTAMPS_FAR_AHEAD = "timestamps_far_ahead"
"""Counts records whose event time leapt further than the generator believes."""


class EventTimes(Protocol):
    """The watermark generator of one subtask and attempt. See `connectors.watermark_strategy`."""

    far_ahead_count: int

    def on_batch(self, batch: pa.RecordBatch, times_ms: Longs) -> None: ...

    def watermark_ms(self) -> int | None: ...


class AssignTimestamps(Operator):
    """Guarantee: after this operator event time only grows, even at recoveries and rescales."""

    assigns_event_time: ClassVar[bool] = True

    def __init__(
        self, column: str, create: Callable[[], EventTimes], idle_after_ms: int | None
    ) -> None:
        self._column = column
        self._create = create
        self._idle_after_ms = idle_after_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Makes the column a timestamp in milliseconds and UTC, if it is not one."""
        schema = inputs[0]
        given = field_of(schema, self._column).type
        if not pa.types.is_timestamp(given) and not pa.types.is_integer(given):
            raise Rejected(
                f"The column {self._column!r} is {given}. Event time is a timestamp, or an integer"
                " of milliseconds since 1970; convert the column with map_batches first."
            )
        self._position = schema.get_field_index(self._column)
        return schema.set(self._position, pa.field(self._column, EVENT_TIME))

    def emits_changes(self, inputs: list[bool]) -> bool:
        return any(inputs)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = self.output_schema(inputs)
        self._times = self._create()
        self._current_ms = context.restored_watermark_ms
        # Sent again: a watermark that was in flight at the cut was not kept.
        self._has_told = self._current_ms == MIN_WATERMARK_MS
        self._is_idle = False
        self._silent_since_ms = context.now_ms()

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._tell_restored()
        stamped = self._stamped(batch)
        self._silent_since_ms = self.context.now_ms()
        self._tell_idle(is_idle=False)
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(stamped)
        self._follow(stamped)

    def on_watermark(self, timestamp_ms: int) -> None:
        if timestamp_ms >= MAX_WATERMARK_MS:
            self._tell_idle(is_idle=False)
            self._advance(timestamp_ms)

    def on_status(self, *, is_idle: bool) -> None:
        """The input is idle, or active again."""
        self._silent_since_ms = self.context.now_ms()
        self._tell_idle(is_idle=is_idle)

    @property
    def awaits_processing_time(self) -> bool:
        return not self._has_told or (self._idle_after_ms is not None and not self._is_idle)

    def on_processing_time(self, now_ms: int) -> None:
        self._tell_restored()
        limit_ms = self._idle_after_ms
        if limit_ms is not None and now_ms - self._silent_since_ms >= limit_ms:
            self._tell_idle(is_idle=True)

    def _stamped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = list(batch.columns)
        columns[self._position] = _in_event_time(columns[self._position])
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _follow(self, stamped: pa.RecordBatch) -> None:
        moments = stamped.column(self._position)
        if moments.null_count:
            stamped = stamped.filter(pc.is_valid(moments))
            moments = stamped.column(self._position)
        if stamped.num_rows == 0:
            return
        before = self._times.far_ahead_count
        self._times.on_batch(stamped, longs(moments))
        if self._times.far_ahead_count > before:
            self.context.count(TIMESTAMPS_FAR_AHEAD, self._times.far_ahead_count - before)
        known_ms = self._times.watermark_ms()
        if known_ms is not None:
            self._advance(min(known_ms, MAX_WATERMARK_MS - 1))  # only the end ends event time

    def _advance(self, timestamp_ms: int) -> None:
        if timestamp_ms > self._current_ms:
            self._current_ms = timestamp_ms
            self._has_told = True
            self.context.mark(Watermark(timestamp_ms))

    def _tell_restored(self) -> None:
        if not self._has_told:
            self._has_told = True
            self.context.mark(Watermark(self._current_ms))

    def _tell_idle(self, *, is_idle: bool) -> None:
        if self._is_idle != is_idle:
            self._is_idle = is_idle
            self.context.mark(WatermarkStatus(is_idle))


def _in_event_time(column: pa.Array) -> pa.Array:
    """Finer times are rounded down, and those without a zone are in UTC."""
    given = column.type
    if pa.types.is_integer(given):
        return column.cast(pa.int64()).view(EVENT_TIME)
    if given.unit in ("us", "ns"):
        column = pc.floor_temporal(column, unit="millisecond")
    return column.cast(EVENT_TIME)


class KeyedTime:
    """Guarantee: event time never goes back for any key, even after a restore or a rescale."""

    def __init__(self, context: OperatorContext, keys: tuple[str, ...]) -> None:
        self.watermark_ms = context.restored_watermark_ms
        self._keys = keys
        self._restored = context.restored_times_ms

    def advance(self, watermark_ms: int) -> None:
        """Advances event time.

        Results that this makes due still use the restored times; then they are forgotten.
        """
        if self._restored is not None and self.watermark_ms >= self._restored.max():
            self._restored = None
        self.watermark_ms = watermark_ms

    @property
    def newest_ms(self) -> int:
        """The newest time of any key."""
        restored = self._restored
        return self.watermark_ms if restored is None else max(self.watermark_ms, restored.max())

    def of(self, rows: pa.RecordBatch) -> Longs:
        """Returns one time per row, or a single time for all rows."""
        return np.maximum(self.restored_of(rows), np.int64(self.watermark_ms))

    def restored_of(self, rows: pa.RecordBatch) -> Longs:
        """Returns the time of each row's key at the cut; it matters only until others catch up."""
        restored = self._restored
        if restored is None:
            return _NEVER
        groups = key_groups(key_hashes(rows, self._keys), len(restored))
        return np.asarray(restored[groups])
