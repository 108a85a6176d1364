"""Reads the retained points again from time to time, so that damage is known before it counts.

Reads every byte of every retained point, on a thread of its own. `damage_memory` decides what
follows from damage: the point is marked, and so is every other one that refers to the same file. A
marked point that is whole again loses its mark.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pipelines.domain.clock import Clock
from pipelines.domain.errors import Retryable
from pipelines.domain.events import Event, PointsVerified
from pipelines.domain.status import DamageFinder
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.job_events import JobEvent, PointsLookedAt
from pipelines.runtime.master.restore_points import check_mounted
from pipelines.runtime.master.watched_executor import WatchedExecutor
from pipelines.storage.store import CheckpointStore

log = logging.getLogger(__name__)


class PointVerifier:
    """Used on the job master's thread; `interval_ms` 0 turns it off."""

    def __init__(
        self,
        store: CheckpointStore,
        clock: Clock,
        interval_ms: int,
        damage: DamageMemory,
        emit: Callable[[Event], None],
        post: Callable[[JobEvent], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._damage = damage
        self._emit = emit
        self._post = post
        reader = ThreadPoolExecutor(1, thread_name_prefix="verification")
        self._reader = WatchedExecutor(reader, post)
        self._due_ms = clock.monotonic_ms() + interval_ms
        self._is_reading = False

    @property
    def due_ms(self) -> float | None:
        """Monotonic; None: off, or under way."""
        return None if self._interval_ms == 0 or self._is_reading else self._due_ms

    def start_when_due(self, now_ms: float, points: RetainedPoints) -> None:
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return
        self._is_reading = True
        self._reader.submit(self._read, points.every_newest_first(), self._damage.remembered)

    def on_looked_at(self, looked: PointsLookedAt, points: RetainedPoints) -> None:
        """A point that retention has deleted meanwhile does not count; its shared files do."""
        self._is_reading = False
        self._due_ms = self._clock.monotonic_ms() + self._interval_ms
        for point, damages in looked.damaged:
            said = f"Looked at again: {damages[0].problem}"
            self._damage.on_found(point, damages, DamageFinder.VERIFICATION, said)
        kept = points.every_newest_first()
        whole = [point for point in looked.whole if point in kept]
        self._damage.on_whole(whole, looked.known)
        self._emit(
            PointsVerified(
                whole=len(whole),
                damaged=sum(point in kept for point, _ in looked.damaged),
                duration_ms=looked.duration_ms,
                paths=[point.location for point in whole],
            )
        )

    def close(self) -> None:
        """Does not wait for a reading under way."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _read(self, points: list[RetainedPoint], known: frozenset[str]) -> None:
        began_ms = self._clock.monotonic_ms()
        whole, damaged = [], []
        for point in points:
            try:
                damages = self._store.verify(point.location)
                if damages:
                    check_mounted(self._store, point.location)
            except (Retryable, OSError) as error:  # the storage, not the point
                log.warning("%s could not be looked at: %s", point.location, error)
                continue
            if damages:
                damaged.append((point, tuple(damages)))
            else:
                whole.append(point)
        duration_ms = self._clock.monotonic_ms() - began_ms
        self._post(PointsLookedAt(tuple(whole), tuple(damaged), duration_ms, known))
