"""An executor without threads: each piece of work is done when its turn comes."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

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
