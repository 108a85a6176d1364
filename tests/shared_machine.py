"""Lets all tests of the suite's processes run at the same time, except those marked `alone`.

Uses locks of the operating system, so that a process that dies blocks no other.
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
        """Waits until no test runs alone there; with `alone`, waits until no test runs at all.

        Every test passes through the queue, so that other tests cannot overtake an `alone` test for
        ever.
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
            fcntl.flock(file, fcntl.LOCK_UN)  # a child process forked meanwhile holds the lock too
