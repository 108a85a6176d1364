"""Times work that is shared between processes; starting them is not counted."""

import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import TypeVar

from tests.processes.host import forks

Share = TypeVar("Share")
START_S = 60.0


def seconds_for(work: Callable[[Share], None], shares: list[Share]) -> float:
    """Each share in a process of its own, all at once. Raises RuntimeError if one fails."""
    ready = forks.Barrier(len(shares) + 1)
    processes = [forks.Process(target=_work, args=(ready, work, share)) for share in shares]
    for process in processes:
        process.start()
    ready.wait(START_S)
    began = time.monotonic()
    for process in processes:
        process.join()
    took_s = time.monotonic() - began
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"{work.__name__} failed")
    return took_s


def _work(ready: Barrier, work: Callable[[Share], None], share: Share) -> None:
    ready.wait(START_S)
    work(share)
