"""Event time of a subtask: the smallest watermark of its open inputs.

Pure. Source: Flink, `StatusWatermarkValve` (without idleness: every split here advances).
"""

from collections.abc import Iterable

from pipelines.domain.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.ids import ChannelId


class WatermarkMerger:
    """Guarantee: what it returns only grows, and never passes an open input's own watermark."""

    def __init__(self, inputs: Iterable[ChannelId], restored_ms: int | None = None) -> None:
        self._by_input = dict.fromkeys(inputs, MIN_WATERMARK_MS)
        self.current_ms = MIN_WATERMARK_MS if restored_ms is None else restored_ms

    def on_watermark(self, channel: ChannelId, timestamp_ms: int) -> int | None:
        """The subtask's new event time, or None when it has not moved."""
        self._by_input[channel] = max(self._by_input[channel], timestamp_ms)
        return self._advance()

    def on_end(self, channel: ChannelId) -> int | None:
        self._by_input.pop(channel)
        return self._advance()

    def _advance(self) -> int | None:
        merged = min(self._by_input.values(), default=MAX_WATERMARK_MS)
        if merged <= self.current_ms:
            return None
        self.current_ms = merged
        return merged
