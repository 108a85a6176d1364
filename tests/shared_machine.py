"""Which tests may run beside each other in the suite's processes: all but those marked `alone`.

Locks of the operating system, so that a process that dies holds nobody up.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

QUEUE = "queue.lock"


class SharedMachine:
    """Processes that name the same directory share one machine."""

    def __init__(self, directory: Path) -> None:
        self._queue = directory / QUEUE
        self._machine = directory / "machine.lock"

    @contextmanager
    def used(self, *, alone: bool) -> Iterator[None]:
        """Waits until nobody is there who is alone, or, to be alone, until nobody is there.

        Everybody comes through the queue, so that who wants to be alone is not overtaken for ever.
        """
        with ExitStack() as stack:
            with _held(self._queue, fcntl.LOCK_EX):
                stack.enter_context(_held(self._machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            yield


@contextmanager
def _held(path: Path, kind: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, kind)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too
