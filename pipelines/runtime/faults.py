"""Injects faults on purpose where the runtime passes a named point.

Without a plan, as in every run outside of tests, passing a point does nothing until a request asks
for a fault.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.domain.errors import Rejected
from pipelines.domain.faults import PERMISSION, Fault, FaultAction, FaultPoint
from pipelines.domain.ids import Attempt

SLOW_S = 1.0


class FaultOnPurpose(Exception):
    """The error that `FaultAction.FAIL` raises."""


@dataclass(frozen=True, slots=True)
class _Kill:
    point: FaultPoint
    until_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class _Slow:
    point: FaultPoint
    delay_s: float
    until_s: float  # monotonic


class Faults:
    """The plan of one process. Thread-safe: any thread may pass a point."""

    def __init__(self, plan: Sequence[Fault] = (), slot: int | None = None) -> None:
        self._kill: _Kill | None = None
        self._slow: _Slow | None = None
        self._passed: Counter[tuple[Attempt, FaultPoint]] = Counter()
        self._lock = threading.Lock()
        self.follow(plan, slot)

    def follow(self, plan: Sequence[Fault], slot: int | None = None) -> None:
        """Follows this plan from now on. A kill that was requested before stays due."""
        self._plan = [fault for fault in plan if slot is None or fault.slot in (None, slot)]

    def kill_at(self, point: FaultPoint, within_s: float) -> None:
        """Kills this process the next time it passes the point, in any attempt.

        The request expires after `within_s`: by then the requester no longer expects it.
        """
        self._kill = _Kill(point, time.monotonic() + within_s)

    def slow_at(self, point: FaultPoint, delay_s: float, for_s: float) -> None:
        """Adds `delay_s` each time this process passes the point, for the next `for_s`."""
        self._slow = _Slow(point, delay_s, time.monotonic() + for_s)

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        """Carries out due faults: kills, stops or slows this process, or raises FaultOnPurpose."""
        kill = self._kill
        if kill is not None and point is kill.point and time.monotonic() < kill.until_s:
            os.kill(os.getpid(), signal.SIGKILL)
        slow = self._slow
        if slow is not None and point is slow.point and time.monotonic() < slow.until_s:
            time.sleep(slow.delay_s)
        if not self._plan:
            return
        with self._lock:
            self._passed[attempt, point] += 1
            nth = self._passed[attempt, point]
        for fault in self._plan:
            if (fault.point, fault.attempt, fault.nth) == (point, attempt, nth):
                _act(fault)


NO_FAULTS = Faults()
"""The default for callers that have neither a plan nor requests."""


def check_permission(plan: Sequence[Fault]) -> None:
    """Raises Rejected if there are faults in the plan and this process may not carry them out."""
    if plan and os.environ.get(PERMISSION) != "1":
        raise Rejected(
            "The setting testing.faults kills processes on purpose and is refused: this pipeline"
            " does not allow faults."
        )


def _act(fault: Fault) -> None:
    match fault.action:
        case FaultAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultAction.STOP:
            # Stops this thread first; with `os.kill`, another thread would get the signal first
            # and this one would continue for a moment.
            signal.raise_signal(signal.SIGSTOP)
        case FaultAction.SLOW:
            time.sleep(SLOW_S)
        case FaultAction.FAIL:
            raise FaultOnPurpose(f"a fault on purpose while {fault.point}")
