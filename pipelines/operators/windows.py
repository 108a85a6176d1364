"""Tumbling windows of event time: which window a row belongs to, and when a window is due.

A window is named by its start, in milliseconds since the epoch, and covers [start, start + size).
Source: Flink's `TumblingEventTimeWindows` and `EventTimeTrigger`, without offset and lateness.
"""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import Longs, longs


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    size_ms: int

    def starts(self, event_time: pa.Array) -> Longs:
        """The window of each row; the column has no nulls."""
        times_ms = longs(event_time)
        return times_ms - times_ms % self.size_ms  # floors below the epoch, too

    def newest_due(self, watermark_ms: int) -> int:
        """Windows that start at or before this have ended: nothing more can enter them."""
        return watermark_ms + 1 - self.size_ms


def tumbling(
    *, days: int = 0, hours: int = 0, minutes: int = 0, seconds: int = 0, milliseconds: int = 0
) -> TumblingWindows:
    """Raises Rejected unless the windows have a positive size."""
    total_minutes = (days * 24 + hours) * 60 + minutes
    size_ms = (total_minutes * 60 + seconds) * 1_000 + milliseconds
    if size_ms <= 0:
        raise Rejected(f"A window of {size_ms} ms cannot be; its size must be positive.")
    return TumblingWindows(size_ms)
