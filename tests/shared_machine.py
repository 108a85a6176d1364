"""Which tests may run beside each other in the suite's processes: all but those marked `alone`.

Locks of the operating system, so that a process that dies holds no other up.
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
        """Waits until no test is alone there, or, to be alone, until no test is there.

        Every test comes through the queue, so that others do not overtake for ever one that wants
        to be alone.
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
