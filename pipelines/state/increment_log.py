"""Shares `protocol.increments` between the thread of cuts and notices and that of uploads."""

import threading
from typing import Generic, TypeVar

from pipelines.domain.ids import BUILD_ON_NOTHING, CheckpointId
from pipelines.protocol.increments import CompletedIncrements

T = TypeVar("T")


class IncrementLog(Generic[T]):
    def __init__(self, restored: T | None = None) -> None:
        self._increments = CompletedIncrements(restored)
        self._lock = threading.Lock()

    def base(self, confirmed_id: CheckpointId) -> T | None:
        """What the next increment builds on; everything up to `confirmed_id` is complete."""
        with self._lock:
            if confirmed_id == BUILD_ON_NOTHING:
                self._increments.on_damaged()
            self._increments.on_completed(confirmed_id)
            return self._increments.base

    def on_written(self, checkpoint_id: CheckpointId, increment: T | None) -> None:
        with self._lock:
            self._increments.on_written(checkpoint_id, increment)

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_completed(checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_aborted(checkpoint_id)
