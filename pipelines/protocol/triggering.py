"""When the next checkpoint starts, and on whose behalf.

Pure: time is passed in. Order of requests: savepoints, then what a person asked for, then the
periodic one; at most one checkpoint is under way; the minimum pause delays only periodic ones.

Source: Flink, `CheckpointRequestDecider`.
"""

from dataclasses import dataclass, field

from pipelines.domain.errors import check
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind, SavepointFormat

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """`request_id` is None for periodic and final checkpoints, which nobody waits for."""

    kind: CheckpointKind
    request_id: RequestId | None = None
    stops_run: bool = False
    cancels_run: bool = False  # it stops, and ends as cancelled
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL  # of no meaning elsewhere


PERIODIC = TriggerRequest(CheckpointKind.CHECKPOINT)
FINAL = TriggerRequest(CheckpointKind.FINAL, stops_run=True)


@dataclass(frozen=True, slots=True)
class Start:
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing may start before this moment (None: not before another event)."""

    monotonic_ms: float | None


@dataclass(slots=True)
class TriggerDecider:
    """Guarantee: no two checkpoints at once, and no request overtaken by a lesser one."""

    interval_ms: float
    min_pause_ms: float
    max_queued: int = MAX_QUEUED_REQUESTS
    _queue: list[TriggerRequest] = field(default_factory=list)
    _due_ms: float | None = None  # of the next periodic one; None while no attempt runs
    _last_end_ms: float | None = None
    _under_way: bool = False
    _sources_ended: bool = False

    def on_running(self, now_ms: float) -> None:
        """All subtasks run: the periodic schedule starts."""
        self._due_ms = now_ms + self.interval_ms
        self._under_way = False
        self._sources_ended = False

    def on_stopped(self) -> None:
        """The attempt is over; requests stay queued for the next one."""
        self._due_ms = None
        self._under_way = False

    def on_sources_ended(self) -> None:
        """Nothing more will be read: the next checkpoint is the final one."""
        self._sources_ended = True

    def on_request(self, request: TriggerRequest) -> bool:
        """False: the queue is full (TOO_MANY_CHECKPOINT_REQUESTS)."""
        if len(self._queue) >= self.max_queued:
            return False
        self._queue.append(request)
        self._queue.sort(key=_rank)  # stable: equals stay in order of arrival
        return True

    def drop_requests(self) -> list[TriggerRequest]:
        """The run ends: nobody will serve these any more."""
        dropped, self._queue = self._queue, []
        return dropped

    def next(self, now_ms: float) -> Start | WaitUntil:
        if self._due_ms is None or self._under_way:
            return WaitUntil(None)
        if self._queue:
            return Start(self._queue[0])
        if self._sources_ended:
            return Start(FINAL)
        due_ms = self._due_ms
        if self._last_end_ms is not None:
            due_ms = max(due_ms, self._last_end_ms + self.min_pause_ms)
        return Start(PERIODIC) if now_ms >= due_ms else WaitUntil(due_ms)

    def on_started(self, request: TriggerRequest, now_ms: float) -> None:
        """The periodic schedule keeps its beat; beats that were missed are not made up for."""
        check(self._due_ms is not None and not self._under_way, "one checkpoint at a time")
        self._under_way = True
        if self._queue and self._queue[0] is request:
            self._queue.pop(0)
        elif self._due_ms is not None:
            self._due_ms = max(self._due_ms + self.interval_ms, now_ms)

    def on_ended(self, now_ms: float) -> None:
        """It completed or was aborted."""
        self._under_way = False
        self._last_end_ms = now_ms


def _rank(request: TriggerRequest) -> int:
    return 0 if request.kind is CheckpointKind.SAVEPOINT else 1
