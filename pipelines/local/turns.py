"""What takes the place of threads and clocks in a run of one thread, which works in turns.

An executor does each piece of work when its turn comes. The time is the machine's own, or one that
passes as fast as work is done; `pass_time` is called when there is nothing to do.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, Protocol, TypeVar

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


Taken = ParamSpec("Taken")
Result = TypeVar("Result")


class Chores(Executor):
    """What waits for a result must not be the thread that takes the turns."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(
        self, work: Callable[Taken, Result], /, *given: Taken.args, **options: Taken.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()

        def carry_out() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*given, **options))
            except Exception as error:  # as an executor does: the one that asks gets it
                future.set_exception(error)

        self._waiting.append(carry_out)
        return future

    def take_turn(self) -> bool:
        """False: there was nothing to do."""
        if not self._waiting:
            return False
        self._waiting.popleft()()
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while wait and self.take_turn():
            pass
