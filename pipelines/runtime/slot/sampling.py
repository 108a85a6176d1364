"""Samples a slot's subtasks twice a second for the dashboard. Reads only, decides nothing."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from pipelines.domain.clock import Clock
from pipelines.domain.events import SubtaskSample
from pipelines.runtime.control import Message, Sampled
from pipelines.runtime.slot.deployment import Deployment
from pipelines.runtime.subtask.subtask import Subtask

SAMPLING_PERIOD_S = 0.5


@dataclass(slots=True)
class _Before:
    at_ms: float
    idle_ms: float = 0.0
    blocked_ms: float = 0.0


class Sampler(threading.Thread):
    def __init__(
        self, deployment: Deployment, clock: Clock, send: Callable[[Message], None]
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self._deployment = deployment
        self._clock = clock
        self._send = send
        self._process = psutil.Process()
        self._before = {s.name: _Before(clock.monotonic_ms()) for s in deployment.subtasks}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLING_PERIOD_S):
            self._send(self._sample())
            if not any(subtask.is_alive() for subtask in self._deployment.subtasks):
                return

    def _sample(self) -> Sampled:
        counters: dict[str, int] = {}
        for subtask in self._deployment.subtasks:
            counters.update(dict(subtask.chain.counters))
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
        before = self._before[subtask.name]
        now = _Before(self._clock.monotonic_ms(), subtask.load.idle_ms, subtask.load.blocked_ms)
        self._before[subtask.name] = now
        elapsed_ms = max(now.at_ms - before.at_ms, 1.0)
        idle = min(1.0, (now.idle_ms - before.idle_ms) / elapsed_ms)
        blocked = min(1.0 - idle, (now.blocked_ms - before.blocked_ms) / elapsed_ms)
        queued = self._queued(subtask)
        return SubtaskSample(
            vertex=subtask.place.vertex.uid,
            subtask=subtask.place.subtask,
            records_in=subtask.chain.records_in,
            records_out=subtask.chain.records_out,
            busy_ratio=max(0.0, 1.0 - idle - blocked),
            backpressured_ratio=blocked,
            idle_ratio=idle,
            watermark_ms=subtask.watermark_ms(),
            queued_records=queued[0],
            queued_bytes=queued[1],
            state_bytes=subtask.chain.state_bytes(),
        )

    def _queued(self, subtask: Subtask) -> tuple[int, int]:
        statistics = subtask.queued()
        return sum(s.queued_records for s in statistics), sum(s.queued_bytes for s in statistics)
