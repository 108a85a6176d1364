"""Like the threads of a pool to its callers, but work is done when its turn comes."""

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Chores:
    """An executor that does its work when its turn comes, or when a caller waits for it."""

    def __init__(self) -> None:
        self.waiting: deque[Chore] = deque()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Chore":
        chore = Chore(lambda: work(*arguments))
        self.waiting.append(chore)
        return chore

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        while self.waiting:
            self.waiting.popleft().do()

    def do_one(self, rng: random.Random) -> bool:
        """Does one of the waiting chores; threads of a pool do not keep their order."""
        if not self.waiting:
            return False
        index = rng.randrange(min(2, len(self.waiting)))
        chore = self.waiting[index]
        del self.waiting[index]
        chore.do()
        return True


class Chore(Future):  # type: ignore[type-arg]
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def do(self) -> None:
        if self.done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:  # as in an executor, the caller gets it
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(timeout)
