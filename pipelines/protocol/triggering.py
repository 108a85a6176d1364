"""Decides when the next checkpoint starts, and on whose behalf.

Pure: time is passed in. Requests are served in this order: savepoints, then other requests, then
the periodic checkpoint. At most `max_concurrent` are under way; a forced request, such as a
savepoint under aligned checkpoints, does not wait for a free place. The minimum pause delays only
periodic ones, and needs a concurrency of one. After a request that stops the run, nothing starts
until that request has ended.

Source: Flink, `CheckpointRequestDecider`.
"""

from dataclasses import dataclass, field

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import check
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind, SavepointFormat

MAX_QUEUED_REQUESTS = 1000
WISH_AFTER_FAILURE_MS = 1000.0
"""Storage that is down is not tried again at once: that would use up the tolerated failures."""


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """`request_id` is None for periodic and final checkpoints, which have no requester."""

    kind: CheckpointKind
    request_id: RequestId | None = None
    stops_run: bool = False
    cancels_run: bool = False  # the run stops, and ends as cancelled
    drains: bool = False  # the run stops, and event time ends before the barrier
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL  # only savepoints use it


PERIODIC = TriggerRequest(CheckpointKind.CHECKPOINT)
FINAL = TriggerRequest(CheckpointKind.FINAL, stops_run=True)


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """The settings of triggering; they may change during a run.

    An `interval_ms` of None means no periodic checkpoints. With `forces_savepoints`, savepoints do
    not wait for a free place. With `allows_finished_sources`, checkpoints continue after some
    source subtasks have ended.
    """

    interval_ms: float | None
    min_pause_ms: float = 0.0
    max_concurrent: int = 1
    forces_savepoints: bool = True
    allows_finished_sources: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request fails before it gets an id."""

    request: TriggerRequest
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing may start before this moment (None means not before another event)."""

    monotonic_ms: float | None


NOT_BEFORE_AN_EVENT = WaitUntil(None)


@dataclass(slots=True, kw_only=True)
class TriggerDecider:
    """Guarantee: not more checkpoints under way than the rules allow, except for forced savepoints;
    and no request is overtaken by one of a lower rank.

    `first_delay_ms` of `on_running` is the phase of the periodic schedule. Flink draws it at
    random, so that runs that start together do not checkpoint together.
    """

    rules: TriggerRules
    max_queued: int = MAX_QUEUED_REQUESTS
    _queue: list[TriggerRequest] = field(default_factory=list)
    _is_running: bool = False
    _is_wanted: bool = False  # by a source, before all subtasks ran
    _due_ms: float | None = None  # of the next periodic one; None: there is none
    _last_end_ms: float | None = None
    _failed_ms: float | None = None  # the end of the last one, if it failed
    _under_way: int = 0
    _is_stopping: bool = False  # a request that stops the run is under way
    _sources_finished: bool = False  # some of their subtasks have finished
    _sources_ended: bool = False  # all of their subtasks have finished

    def __post_init__(self) -> None:
        _check_rules(self.rules)

    @property
    def has_free_place(self) -> bool:
        return self._under_way < self.rules.max_concurrent

    def on_running(self, now_ms: float, first_delay_ms: float | None = None) -> None:
        """All subtasks run: the periodic schedule starts."""
        delay_ms = self.rules.interval_ms if first_delay_ms is None else first_delay_ms
        self._is_running = True
        self._due_ms = None if self.rules.interval_ms is None else now_ms + (delay_ms or 0.0)
        self._under_way = 0
        self._is_stopping = self._sources_finished = self._sources_ended = False
        if self._is_wanted:
            self.on_reservation_wanted(now_ms)

    def on_stopped(self) -> None:
        """The attempt is over; requests stay queued for the next one."""
        self._is_running = self._is_wanted = False
        self._under_way = 0
        self._is_stopping = False

    def on_rules(self, rules: TriggerRules, now_ms: float) -> None:
        """Applies these rules from now on; a changed interval restarts the schedule."""
        _check_rules(rules)
        if rules.interval_ms != self.rules.interval_ms:
            self._due_ms = None if rules.interval_ms is None else now_ms + rules.interval_ms
        self.rules = rules

    def on_source_finished(self) -> None:
        """A subtask of a source has read everything."""
        self._sources_finished = True

    def on_sources_ended(self) -> None:
        """Nothing more will be read: the next checkpoint is the final one."""
        self._sources_ended = True

    def on_reservation_wanted(self, now_ms: float) -> None:
        """In at-most-once mode, a source stops unless a checkpoint reserves what it has read.

        The periodic checkpoint comes at once instead of on schedule, or soon after one that failed.
        The minimum pause still applies.
        """
        self._is_wanted = not self._is_running
        if self._due_ms is None:
            return
        again_ms = now_ms if self._failed_ms is None else self._failed_ms + WISH_AFTER_FAILURE_MS
        self._due_ms = min(self._due_ms, max(now_ms, again_ms))

    def on_request(self, request: TriggerRequest) -> bool:
        """Returns False if the queue is full (TOO_MANY_CHECKPOINT_REQUESTS)."""
        if len(self._queue) >= self.max_queued:
            return False
        self._queue.append(request)
        self._queue.sort(key=_rank)  # stable: equals stay in order of arrival
        return True

    def next(self, now_ms: float) -> Start | Refuse | WaitUntil:
        """Returns what to do now; the host reports what it did before it asks again."""
        if not self._is_running or self._is_stopping:
            return NOT_BEFORE_AN_EVENT
        if not self.has_free_place:
            return self._next_forced()
        request = self._queue[0] if self._queue else FINAL if self._sources_ended else PERIODIC
        due_ms = self._periodic_due_ms() if request is PERIODIC else now_ms
        if due_ms is None or now_ms < due_ms:
            return WaitUntil(due_ms)
        return self._refusal(request) or Start(request)

    def on_started(self, request: TriggerRequest, now_ms: float) -> None:
        """The periodic schedule keeps its rhythm, and does not make up for missed checkpoints."""
        check(self._is_running and not self._is_stopping, "checkpoints may start")
        check(self.has_free_place or self._is_forced(request), "a place is free", request=request)
        self._under_way += 1
        self._is_stopping = request.stops_run
        self._on_taken(request, now_ms)

    def on_refused(self, request: TriggerRequest, now_ms: float) -> None:
        self._on_taken(request, now_ms)

    def on_completed(self, request: TriggerRequest, now_ms: float) -> None:
        self._on_ended(request, now_ms)
        self._failed_ms = None

    def on_aborted(self, request: TriggerRequest, now_ms: float) -> None:
        self._on_ended(request, now_ms)
        self._failed_ms = now_ms

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(len(self._queue) <= self.max_queued, "the queue is bounded")
        check(self._queue == sorted(self._queue, key=_rank), "no request is overtaken by a lesser")
        check(self._under_way >= 0, "checkpoints under way are counted", count=self._under_way)
        check(self._is_running or not self._under_way, "nothing is under way between attempts")
        check(self._is_running or not self._is_stopping, "nothing stops the run between attempts")

    def _on_ended(self, request: TriggerRequest, now_ms: float) -> None:
        self._under_way = max(0, self._under_way - 1)
        self._last_end_ms = now_ms
        if request.stops_run:
            self._is_stopping = False

    def _next_forced(self) -> Start | WaitUntil:
        if self._queue and self._is_forced(self._queue[0]):
            return Start(self._queue[0])
        return NOT_BEFORE_AN_EVENT

    def _is_forced(self, request: TriggerRequest) -> bool:
        return self.rules.forces_savepoints and request.kind is CheckpointKind.SAVEPOINT

    def _periodic_due_ms(self) -> float | None:
        if self._due_ms is None or self._last_end_ms is None:
            return self._due_ms
        return max(self._due_ms, self._last_end_ms + self.rules.min_pause_ms)

    def _refusal(self, request: TriggerRequest) -> Refuse | None:
        may_run = self.rules.allows_finished_sources or not self._sources_finished
        if may_run or self._sources_ended:
            return None
        return Refuse(request, CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)

    def _on_taken(self, request: TriggerRequest, now_ms: float) -> None:
        if self._queue and self._queue[0] == request:
            self._queue.pop(0)
        elif self._due_ms is not None and self.rules.interval_ms is not None:
            self._due_ms = max(self._due_ms + self.rules.interval_ms, now_ms)


def _check_rules(rules: TriggerRules) -> None:
    check(rules.max_concurrent >= 1, "at least one checkpoint may be under way", rules=rules)
    alone = rules.max_concurrent == 1 or rules.min_pause_ms == 0
    check(alone, "a minimum pause needs a concurrency of one", rules=rules)


def _rank(request: TriggerRequest) -> int:
    return 0 if request.kind is CheckpointKind.SAVEPOINT else 1
