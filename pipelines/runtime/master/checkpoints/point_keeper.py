"""Keeps the points that retention keeps, and has the others deleted and reported.

From time to time it reads every byte of every retained point, on a thread of its own, so that
damage is known before it counts. `damage_memory` decides what follows from damage: the point is
marked, and so is every other one that refers to the same file. A marked point that is whole again
loses its mark.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pipelines.domain.clock import Clock
from pipelines.domain.errors import Retryable, check
from pipelines.domain.events import (
    CheckpointDiscarded,
    ClaimedPointDiscarded,
    Event,
    PointsVerified,
    RestorePointRefused,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.settings import CheckpointStorage, ExternalizedRetention
from pipelines.domain.status import DamageFinder, JobStatus, RequestOutcome
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.checkpoints.point_files import PointFiles
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.checkpoints.underway import Underway
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.job_events import JobEvent, PointsLookedAt, WatchedExecutor
from pipelines.runtime.master.run_context import RunContext
from pipelines.runtime.master.start.starting_point import check_mounted
from pipelines.storage.store import CheckpointStore


class PointKeeper:
    def __init__(
        self,
        context: RunContext,
        points: RetainedPoints,
        files: PointFiles,
        shared: SharedFilesHost,
        damage: DamageMemory,
    ) -> None:
        self._context = context
        self._points = points
        self._files = files
        self._shared = shared
        self._damage = damage

    def on_completed(self, underway: Underway) -> None:
        """Marks the point also for damage that was found while its manifest was being written."""
        point = underway.point
        damage = self._damage.on_completed(point)
        if damage is not None:
            self._context.record.emit(RestorePointRefused(path=point.location, message=damage))
        self._give_up(self._points.on_completed(point, damage))

    def on_run_ended(self, status: JobStatus) -> None:
        """After this the run has only the points that its retention leaves."""
        policy = self._context.settings.checkpointing.retention
        if self._context.settings.storage.kind is CheckpointStorage.JOBMANAGER:
            policy = ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS  # memory ends with us
        self._give_up(self._points.on_run_ended(status, policy))

    def _give_up(self, points: list[RetainedPoint]) -> None:
        """A checkpoint of the run is no point any more; a sweep deletes what may be left of it. A
        claimed point belongs to another run, whose page shows its deletion once it is gone."""
        attempt = self._context.fence.current
        for point in points:
            if point.is_claimed:
                self._files.discard_retained(attempt, point, partial(self._say_gone, point))
                continue
            self._files.discard_retained(attempt, point, self._shared.on_discarded(attempt, point))
            self._context.record.emit(CheckpointDiscarded(checkpoint_id=point.checkpoint_id))

    def _say_gone(self, point: RetainedPoint) -> None:
        """From any thread."""
        self._context.record.emit(ClaimedPointDiscarded(path=point.location))


log = logging.getLogger(__name__)


class PointVerifier:
    """Used on the job master's thread; with `interval_ms` 0 it reads only on request.

    One reading at a time. Requests that arrive during a reading share the next one, because the one
    under way may have passed a file before it was damaged.
    """

    def __init__(
        self,
        *,
        store: CheckpointStore,
        clock: Clock,
        interval_ms: int,
        damage: DamageMemory,
        emit: Callable[[Event], None],
        post: Callable[[JobEvent], None],
        answer: Callable[[RequestId, RequestOutcome, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._damage = damage
        self._emit = emit
        self._post = post
        self._answer = answer
        reader = ThreadPoolExecutor(1, thread_name_prefix="verification")
        self._reader = WatchedExecutor(reader, post)
        self._is_reading = False
        self._asked: list[RequestId] = []  # wait for the next reading
        self._answered: list[RequestId] = []  # by the reading under way
        self._due_ms = self._next_due_ms()

    @property
    def due_ms(self) -> float | None:
        """Monotonic; None: off, or under way."""
        return None if self._is_reading else self._due_ms

    def on_asked(self, request_id: RequestId) -> None:
        """Another process has found damage: the next reading is due now, and answers it."""
        self._asked.append(request_id)
        self._due_ms = self._next_due_ms()

    def start_when_due(self, now_ms: float, points: RetainedPoints) -> None:
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return
        self._is_reading = True
        self._answered, self._asked = self._asked, []
        self._reader.submit(self._read, points.every_newest_first(), self._damage.remembered)

    def on_looked_at(self, looked: PointsLookedAt, points: RetainedPoints) -> None:
        """A point that retention has deleted meanwhile does not count; its shared files do."""
        check(self._is_reading, "a reading ends once")
        self._is_reading = False
        self._due_ms = self._next_due_ms()
        for point, damages in looked.damaged:
            said = f"Looked at again: {damages[0].problem}"
            self._damage.on_found(point, damages, DamageFinder.VERIFICATION, said)
        kept = points.every_newest_first()
        whole = [point for point in looked.whole if point in kept]
        damaged_count = sum(point in kept for point, _ in looked.damaged)
        self._damage.on_whole(whole, looked.known)
        self._emit(
            PointsVerified(
                whole=len(whole),
                damaged=damaged_count,
                not_counted=looked.point_count - len(whole) - damaged_count,
                duration_ms=looked.duration_ms,
                paths=[point.location for point in whole],
            )
        )
        said = f"The driver has read the points: {len(whole)} whole, {damaged_count} damaged."
        for request_id in self._answered:
            self._answer(request_id, RequestOutcome.SUCCEEDED, said)

    def close(self) -> None:
        """Does not wait for a reading under way."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _next_due_ms(self) -> float | None:
        now_ms = self._clock.monotonic_ms()
        if self._asked:
            return now_ms
        return now_ms + self._interval_ms if self._interval_ms else None

    def _read(self, points: list[RetainedPoint], known: frozenset[str]) -> None:
        began_ms = self._clock.monotonic_ms()
        whole, damaged = [], []
        for point in points:
            try:
                check_mounted(self._store, point.location)
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
        looked = PointsLookedAt(tuple(whole), tuple(damaged), duration_ms, len(points), known)
        self._post(looked)
