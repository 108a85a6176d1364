"""Samples a slot's subtasks twice a second for the dashboard. Reads only, decides nothing."""

import threading
from collections.abc import Callable

import psutil

from pipelines.channels.channel import ChannelStatistics
from pipelines.domain.clock import Clock
from pipelines.domain.events import SubtaskSample
from pipelines.runtime.control import Message, Sampled
from pipelines.runtime.slot.deployment import Deployment
from pipelines.runtime.subtask.load import Spent
from pipelines.runtime.subtask.subtask import Subtask

SAMPLING_PERIOD_S = 0.5
_NOTHING = Spent(0.0, 0.0, 0.0)


class Sampler(threading.Thread):
    def __init__(
        self, deployment: Deployment, clock: Clock, send: Callable[[Message], None]
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self._deployment = deployment
        self._clock = clock
        self._send = send
        self._process = psutil.Process()
        self._before: dict[str, Spent] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLING_PERIOD_S):
            self._send(self._sample())
            if not any(subtask.is_alive() for subtask in self._deployment.subtasks):
                return

    def _sample(self) -> Sampled:
        counters: dict[str, int] = {}
        for subtask in self._deployment.subtasks:
            counters.update(subtask.chain.counters)
        return Sampled(
            subtasks=[self._subtask(subtask) for subtask in self._deployment.subtasks],
            source_records=sum(
                subtask.chain.head_context().counters.get("records_read", 0)
                for subtask in self._deployment.sources
            ),
            resident_bytes=self._process.memory_info().rss,
            counters=counters,
        )

    def _subtask(self, subtask: Subtask) -> SubtaskSample:
        spent = subtask.load.spent(self._clock.monotonic_ms())
        before = self._before.get(subtask.name, _NOTHING)
        self._before[subtask.name] = spent
        busy, idle, backpressured = ratios(before, spent)
        queued = subtask.queued()
        return SubtaskSample(
            vertex=subtask.place.vertex.uid,
            subtask=subtask.place.subtask,
            records_in=subtask.chain.records_in,
            records_out=subtask.chain.records_out,
            busy_ratio=busy,
            backpressured_ratio=backpressured,
            idle_ratio=idle,
            busy_ms=round(spent.busy_ms),
            backpressured_ms=round(spent.backpressured_ms),
            idle_ms=round(spent.idle_ms),
            watermark_ms=subtask.watermark_ms(),
            queued_records=sum(each.queued_records for each in queued),
            queued_bytes=sum(each.queued_bytes for each in queued),
            state_bytes=subtask.chain.state_bytes(),
            pending_records=subtask.pending_records(),
            bytes_in=sum(each.read_bytes for each in queued),
            bytes_out=subtask.chain.bytes_out,
            queued_ms=_queued_ms(queued),
            window_bytes=queued[0].window_bytes if queued else None,
        )


def _queued_ms(queued: list[ChannelStatistics]) -> int | None:
    known = [each.queued_ms for each in queued if each.queued_ms is not None]
    return round(sum(known)) if known else None


def ratios(before: Spent, now: Spent) -> tuple[float, float, float]:
    """Busy, idle and backpressured between two readings; they sum to 1. No time is idle time.

    A turn just as the last reading was taken may have been counted on its other side.
    """
    busy_ms = max(0.0, now.busy_ms - before.busy_ms)
    idle_ms = max(0.0, now.idle_ms - before.idle_ms)
    backpressured_ms = max(0.0, now.backpressured_ms - before.backpressured_ms)
    total_ms = busy_ms + idle_ms + backpressured_ms
    if total_ms <= 0:
        return 0.0, 1.0, 0.0
    return busy_ms / total_ms, idle_ms / total_ms, backpressured_ms / total_ms
