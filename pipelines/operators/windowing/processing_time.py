"""Windows of processing time: a record belongs to the windows of the moment of its processing.

Hosts an operator over windows of event time. Each batch gets the present moment as its event time,
and the clock takes the place of watermarks. A window is emitted when the clock has reached its end,
and at the end of a bounded input. No record is late.

The clock never goes back, even after a recovery on another machine: every snapshot contains the
time that it had reached, and all subtasks continue from the latest of these times. So no window
that was emitted starts again. Records that are processed again after a recovery may enter other
windows than before, as in Flink.

Source: Flink's `TumblingProcessingTimeWindows` and its kin, with `ProcessingTimeTrigger`. At the
end of its input Flink drops open windows.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import Redistribution
from pipelines.operators.columns import EVENT_TIME, timestamps
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.windowing.around import Around
from pipelines.operators.windowing.windows import SessionWindows, Windows
from pipelines.state.descriptors import ListStateDescriptor

PROCESSING_TIME = "__processing_time"
"""The column with the moment of processing; authors do not see it."""

_CLOCK = ListStateDescriptor("processing_time", pa.int64())


@dataclass(frozen=True, slots=True)
class ProcessingTimeWindows:
    """The given windows, but in processing time."""

    windows: Windows


def processing_time(windows: Windows) -> ProcessingTimeWindows:
    """The same windows by the clock instead of event time: `processing_time(tumbling(minutes=1))`.

    They need no event time, are never late, and differ from run to run.
    """
    return ProcessingTimeWindows(windows)


class InProcessingTime(Around):
    """`inner` has PROCESSING_TIME as its event time, and no allowed lateness."""

    def __init__(self, inner: Operator, windows: Windows) -> None:
        super().__init__(inner, PROCESSING_TIME)
        self._windows = windows

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        """Returns no side output, because no record is late."""
        return {}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        self._clock = context.operator_state.list_of(_CLOCK, Redistribution.UNION)
        self._reached_ms = MIN_WATERMARK_MS
        self._due_ms = MIN_WATERMARK_MS  # no window is due before this time
        self._held_until_ms: int | None = None  # by then every open window has ended
        super().open(context, inputs)

    def on_restored(self) -> None:
        super().on_restored()
        reached = self._clock.get()
        if len(reached):
            self._reached_ms = pc.max(reached).as_py()
            self._held_until_ms = self._newest_end_ms()

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        super().on_cut(checkpoint_id)
        self._reach(self.context.now_ms())
        self._clock.update(pa.array([self._reached_ms]))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._reach(self.context.now_ms())
        moments = timestamps(np.full(batch.num_rows, self._reached_ms, np.int64))
        super().on_batch(port, batch.append_column(pa.field(PROCESSING_TIME, EVENT_TIME), moments))
        self._held_until_ms = self._newest_end_ms()

    def on_watermark(self, timestamp_ms: int) -> None:
        if timestamp_ms >= MAX_WATERMARK_MS:
            super().on_watermark(timestamp_ms)
            self._held_until_ms = None

    @property
    def awaits_processing_time(self) -> bool:
        return self._held_until_ms is not None

    def on_processing_time(self, now_ms: int) -> None:
        self._reach(now_ms)
        if self._held_until_ms is None or self._reached_ms < self._due_ms:
            return
        super().on_watermark(self._reached_ms - 1)  # records of this very moment may still come
        self._due_ms = self._next_end_ms()
        if self._reached_ms >= self._held_until_ms:
            self._held_until_ms = None

    def _reach(self, now_ms: int) -> None:
        self._reached_ms = max(self._reached_ms, now_ms)

    def _newest_end_ms(self) -> int:
        """Returns the end of the last window that a record can belong to now."""
        now_ms, windows = self._reached_ms, self._windows
        if isinstance(windows, SessionWindows):
            return now_ms + windows.gap_ms
        newest_ms = now_ms - (now_ms - windows.offset_ms) % windows.slide_ms
        return newest_ms + windows.size_ms

    def _next_end_ms(self) -> int:
        """Returns the next possible end of a window; sessions know themselves when one is due."""
        now_ms, windows = self._reached_ms, self._windows
        if isinstance(windows, SessionWindows):
            return now_ms + 1
        since_ms = (now_ms - windows.offset_ms - windows.size_ms) % windows.slide_ms
        return now_ms - since_ms + windows.slide_ms

    def _given(self, inputs: list[pa.Schema]) -> list[pa.Schema]:
        return [inputs[0].append(pa.field(PROCESSING_TIME, EVENT_TIME))]

    def _inner_context(self, context: OperatorContext) -> OperatorContext:
        """Resets restored event times, which have no meaning for the clock."""
        return replace(
            super()._inner_context(context),
            restored_watermark_ms=MIN_WATERMARK_MS,
            restored_times_ms=None,
        )
