"""Carries out faults on purpose where the runtime passes a named point.

Without a plan, which is every run outside of tests, passing a point does nothing.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence

from pipelines.domain.errors import Rejected
from pipelines.domain.faults import PERMISSION, Fault, FaultAction, FaultPoint
from pipelines.domain.ids import Attempt

SLOW_S = 1.0


class FaultOnPurpose(Exception):
    """What `FaultAction.FAIL` raises."""


class Faults:
    """The plan of one process. Thread-safe: points are passed on any thread."""

    def __init__(self, plan: Sequence[Fault] = (), slot: int | None = None) -> None:
        self._plan = [fault for fault in plan if slot is None or fault.slot in (None, slot)]
        self._passed: Counter[tuple[Attempt, FaultPoint]] = Counter()
        self._lock = threading.Lock()

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        """Raises FaultOnPurpose; or this process ends or stops here."""
        if not self._plan:
            return
        with self._lock:
            self._passed[attempt, point] += 1
            nth = self._passed[attempt, point]
        for fault in self._plan:
            if (fault.point, fault.attempt, fault.nth) == (point, attempt, nth):
                _act(fault)


NO_FAULTS = Faults()


def check_permission(plan: Sequence[Fault]) -> None:
    """Raises Rejected unless this process may carry out faults."""
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
            os.kill(os.getpid(), signal.SIGSTOP)
        case FaultAction.SLOW:
            time.sleep(SLOW_S)
        case FaultAction.FAIL:
            raise FaultOnPurpose(f"a fault on purpose while {fault.point}")
