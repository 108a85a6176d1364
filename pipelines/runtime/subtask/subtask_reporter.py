"""The reports and requests of a subtask to its slot, and how the subtask spends its time.

The subtask notes in its `Load` when it begins and ends a wait. A `Load` never changes: a sampler on
another thread reads one value, and so also counts a wait that is still under way.

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
    """Takes the reports. The subtask's thread and the upload threads call it."""

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None: ...

    def declined(
        self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception
    ) -> None: ...

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None: ...

    def sources_ended(self, place: ChainPlace) -> None: ...

    def reservation_wanted(self, place: ChainPlace) -> None:
        """In mode at most once: this source waits for the next checkpoint."""
        ...

    def failed(self, place: ChainPlace, error: BaseException) -> None: ...

    def ended(self, place: ChainPlace) -> None: ...

    def reach(self, point: FaultPoint) -> None:
        """A fault on purpose may happen here: raise, or end or stop the process."""
        ...


class CheckpointDeclined(Exception):
    """This subtask does not take part in a checkpoint, for the given reason."""

    def __init__(self, reason: CheckpointFailureReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def failure_reason(error: Exception) -> CheckpointFailureReason:
    """Returns the reason of a decline. Other errors of uploads are of the asynchronous phase."""
    if isinstance(error, CheckpointDeclined):
        return error.reason
    return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION


class Spending(Enum):
    """IDLE: there is no input. BACKPRESSURED: downstream accepts nothing."""

    BUSY = auto()
    IDLE = auto()
    BACKPRESSURED = auto()


class Spent(msgspec.Struct, frozen=True):
    """How the subtask has spent its time since it began, in ms."""

    busy_ms: float
    idle_ms: float
    backpressured_ms: float


class Load(msgspec.Struct, frozen=True):
    """The time spent up to `since_ms`, and how it is spent since then. All times are monotonic."""

    since_ms: float
    spending: Spending = Spending.BUSY
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    backpressured_ms: float = 0.0

    def turned(self, spending: Spending, now_ms: float) -> "Load":
        """Returns the load with the time from `now_ms` on counted as `spending`."""
        spent = self.spent(now_ms)
        return Load(now_ms, spending, spent.busy_ms, spent.idle_ms, spent.backpressured_ms)

    def spent(self, now_ms: float) -> Spent:
        """Returns the time spent up to `now_ms`, which is not before `since_ms`."""
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
