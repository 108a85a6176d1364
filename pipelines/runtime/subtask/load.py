"""How a subtask spends its time: busy, waiting for input, or waiting for credit downstream.

Pure. The subtask reports when it begins to wait and when it has waited. A sampler on another thread
reads one value that never changes, and so also counts a wait that still goes on.

Source: Flink, `TimerGauge` and the busy, idle and backpressured times of `TaskIOMetricGroup`.
"""

from enum import Enum, auto

import msgspec


class Spending(Enum):
    BUSY = auto()
    IDLE = auto()  # there is no input
    BACKPRESSURED = auto()  # downstream takes nothing


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
