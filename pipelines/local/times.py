"""The time of a run in one process: the machine's own, or one that passes as fast as work is done.

`pass_time` is called when there is nothing to do.
"""

import time
from typing import Protocol

from pipelines.domain.clock import Clock
from pipelines.runtime.clocks import SystemClock

IDLE_S = 0.001
TURN_MS = 0.2
IDLE_MS = 5.0


class LocalTime(Clock, Protocol):
    def on_turn(self) -> None:
        """A piece of work is done."""
        ...

    def pass_time(self) -> None:
        """There is nothing to do at the moment."""
        ...


class RealTime(SystemClock):
    """The machine's clocks."""

    def on_turn(self) -> None:
        pass

    def pass_time(self) -> None:
        time.sleep(IDLE_S)


class FastTime:
    """Time that passes by turns, so that a run needs no waiting and is the same each time."""

    def __init__(self) -> None:
        self._now_ms = 1_000.0

    def monotonic_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._now_ms)

    def on_turn(self) -> None:
        self._now_ms += TURN_MS

    def pass_time(self) -> None:
        self._now_ms += IDLE_MS
