"""Decides a subtask's event time: the smallest watermark of its inputs, ignoring idle ones.

Pure. The inputs are the channels of a gate, or the splits of a source. An idle input holds nothing
back. When it is active again, its watermark counts once it has caught up, so that event time does
not go back. While all inputs are idle, the subtask is idle, too, and says so downstream.

Source: Flink, `StatusWatermarkValve` and `WatermarkOutputMultiplexer`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import check
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS

EventTimeMark: TypeAlias = Watermark | WatermarkStatus


@dataclass(slots=True)
class _Input:
    watermark_ms: int = MIN_WATERMARK_MS
    is_idle: bool = False
    counts: bool = True  # it is active, and has caught up since it was idle


class WatermarkMerger:
    """Guarantee: event time only grows, and never passes an input that counts."""

    def __init__(self, inputs: Iterable[str], restored_ms: int | None = None) -> None:
        self._inputs = {name: _Input() for name in inputs}
        self.current_ms = MIN_WATERMARK_MS if restored_ms is None else restored_ms
        self.is_idle = False

    def on_open(self, name: str) -> None:
        """Adds an input; nothing is known about it yet."""
        self._inputs[name] = _Input()

    def on_watermark(self, name: str, timestamp_ms: int) -> list[EventTimeMark]:
        """Returns what to send downstream, in order."""
        changed = self._inputs[name]
        changed.watermark_ms = max(changed.watermark_ms, timestamp_ms)
        self._catch_up(changed)
        return self._advance()

    def on_status(self, name: str, *, is_idle: bool) -> list[EventTimeMark]:
        changed = self._inputs[name]
        if changed.is_idle == is_idle:
            return []
        changed.is_idle = is_idle
        changed.counts = False
        self._catch_up(changed)
        return self._advance()

    def on_end(self, name: str) -> list[EventTimeMark]:
        """The end of the last input ends event time."""
        del self._inputs[name]
        return self._advance()

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        counting = [name for name, each in self._inputs.items() if each.counts]
        idle = [name for name in counting if self._inputs[name].is_idle]
        check(not idle, "an idle input holds nothing back", inputs=idle)
        are_idle = [each.is_idle for each in self._inputs.values()]
        is_idle = bool(are_idle) and all(are_idle)
        check(self.is_idle == is_idle, "a subtask is idle while all its inputs are")

    def _catch_up(self, changed: _Input) -> None:
        if not changed.is_idle and changed.watermark_ms >= self.current_ms:
            changed.counts = True

    def _advance(self) -> list[EventTimeMark]:
        """Reports active before event time advances, and idle after it."""
        is_idle = bool(self._inputs) and all(each.is_idle for each in self._inputs.values())
        status: list[EventTimeMark] = []
        if is_idle != self.is_idle:
            self.is_idle = is_idle
            status = [WatermarkStatus(is_idle)]
        moved = self._moved(is_idle)
        return [*moved, *status] if is_idle else [*status, *moved]

    def _moved(self, is_idle: bool) -> list[EventTimeMark]:
        merged = self._merged(is_idle)
        if merged <= self.current_ms:
            return []
        self.current_ms = merged
        return [Watermark(merged)]

    def _merged(self, is_idle: bool) -> int:
        """Returns the smallest watermark that counts; the largest while all inputs are idle."""
        inputs = self._inputs.values()
        if not inputs:
            return MAX_WATERMARK_MS
        if is_idle:
            return max(each.watermark_ms for each in inputs)
        counting = [each.watermark_ms for each in inputs if each.counts]
        return min(counting, default=MIN_WATERMARK_MS)


def newest_marks(marks: list[EventTimeMark]) -> list[EventTimeMark]:
    """Leaves out each watermark that another one follows directly."""
    return [
        mark
        for mark, after in zip_longest(marks, marks[1:])
        if not (isinstance(mark, Watermark) and isinstance(after, Watermark))
    ]
