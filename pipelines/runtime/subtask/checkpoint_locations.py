"""Knows where the files of each checkpoint go, as far as this slot has heard from the master.

A barrier that overtakes can be faster than the master's own message: another slot has heard of the
checkpoint first, and its barriers come here over the channels. A cut made before the message waits
for it. Owns no file. Flink's barriers carry the location themselves.
"""

import threading
from collections.abc import Callable

from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId

Upload = Callable[[], object]


class CheckpointLocations:
    """Thread-safe. Needs a master that announces every checkpoint to every slot, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[CheckpointId, str] = {}  # under way
        self._newest: CheckpointId = NO_CHECKPOINT
        self._waiting: dict[CheckpointId, list[Upload]] = {}  # by checkpoint not heard of yet

    def on_triggered(self, checkpoint_id: CheckpointId, location: str) -> None:
        with self._lock:
            self._known[checkpoint_id] = location
            self._newest = max(self._newest, checkpoint_id)
            ready = self._waiting.pop(checkpoint_id, [])
        for upload in ready:
            upload()

    def on_over(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint has completed or aborted."""
        with self._lock:
            self._known.pop(checkpoint_id, None)

    def of(self, checkpoint_id: CheckpointId) -> str | None:
        """None: the checkpoint is over, or this slot has not heard of it."""
        with self._lock:
            return self._known.get(checkpoint_id)

    def once_heard_of(self, checkpoint_id: CheckpointId, upload: Upload) -> None:
        """Calls `upload` on this thread, or later on the one that hears of the checkpoint."""
        with self._lock:
            is_early = checkpoint_id > self._newest
            if is_early:
                self._waiting.setdefault(checkpoint_id, []).append(upload)
        if not is_early:
            upload()
