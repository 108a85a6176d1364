"""What a subtask reports to its slot, what it asks of it, and how it spends its time.

The subtask notes in its `Load` when it begins to wait and when it has waited. A sampler on another
thread reads one value that never changes, and so also counts a wait that still goes on.

Source: Flink, `TimerGauge` and the busy, idle and backpressured times of `TaskIOMetricGroup`.
"""

from enum import Enum, auto
from typing import Protocol

import msgspec

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.runtime.subtask.chains.chain_node import ChainPlace


class SubtaskReporter(Protocol):
    """Called from the subtask's thread and from upload threads."""

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None: ...

    def declined(
        self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception
    ) -> None: ...

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None: ...

    def sources_ended(self, place: ChainPlace) -> None: ...

    def reservation_wanted(self, place: ChainPlace) -> None:
        """At most once: without another checkpoint this source stands still."""
        ...

    def failed(self, place: ChainPlace, error: BaseException) -> None: ...

    def ended(self, place: ChainPlace) -> None: ...

    def reach(self, point: FaultPoint) -> None:
        """A fault on purpose may hit here: raise, or end or stop the process."""
        ...


class CheckpointDeclined(Exception):
    """This subtask will not take part in a checkpoint; names the reason."""

    def __init__(self, reason: CheckpointFailureReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def failure_reason(error: Exception) -> CheckpointFailureReason:
    """Any other failure on an upload thread is one of the asynchronous phase."""
    if isinstance(error, CheckpointDeclined):
        return error.reason
    return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION


class Spending(Enum):
    """Idle: there is no input. Backpressured: downstream takes nothing."""

    BUSY = auto()
    IDLE = auto()
    BACKPRESSURED = auto()


class Spent(msgspec.Struct, frozen=True):
    """Since the subtask began, in ms."""

    busy_ms: float
    idle_ms: float
    backpressured_ms: float


class Load(msgspec.Struct, frozen=True):
    """The time spent up to `since_ms`, and what it is spent on since. All times are monotonic."""

    since_ms: float
    spending: Spending = Spending.BUSY
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    backpressured_ms: float = 0.0

    def turned(self, spending: Spending, now_ms: float) -> "Load":
        """From `now_ms` on, time counts as `spending`."""
        spent = self.spent(now_ms)
        return Load(now_ms, spending, spent.busy_ms, spent.idle_ms, spent.backpressured_ms)

    def spent(self, now_ms: float) -> Spent:
        """The time spent up to `now_ms`, which is not before `since_ms`."""
        going_on_ms = now_ms - self.since_ms
        busy_ms, idle_ms, backpressured_ms = self.busy_ms, self.idle_ms, self.backpressured_ms
        match self.spending:
            case Spending.BUSY:
                busy_ms += going_on_ms
            case Spending.IDLE:
                idle_ms += going_on_ms
            case Spending.BACKPRESSURED:
                backpressured_ms += going_on_ms
        return Spent(busy_ms, idle_ms, backpressured_ms)
