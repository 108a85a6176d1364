"""Bounded waiting for a condition that becomes true elsewhere, even on a slow machine."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05
PAUSE_SHARE = 4
"""A pause is this many times as long as the last check took, to leave the processor to others."""


def wait_until(
    holds: Callable[[], bool],
    *,
    within_s: float = PATIENCE_S,
    otherwise: Callable[[], str] = lambda: "it did not come true",
) -> None:
    """Waits until `holds` is true; fails with the text of `otherwise` if that takes too long.

    It notices a quick result quickly and checks a slow one less often.
    """
    deadline_s, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
    while True:
        asked_s = time.monotonic()
        if holds():
            return
        now_s = time.monotonic()
        assert now_s < deadline_s, f"within {within_s:g} s {otherwise()}"
        time.sleep(max(pause_s, PAUSE_SHARE * (now_s - asked_s)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def wait_until_asleep_in(function: Callable[..., object], *, threads: int = 1) -> None:
    """Waits until `threads` other threads are asleep within `function`."""
    wait_until(
        lambda: sum(_sleeps_in(function, each) for each in threading.enumerate()) >= threads,
        otherwise=lambda: f"fewer than {threads} threads wait in {function.__qualname__}",
    )


def _sleeps_in(function: Callable[..., object], thread: threading.Thread) -> bool:
    status = Path(f"/proc/self/task/{thread.native_id}/stat")
    gc.disable()  # Python 3.11 might wait for itself; see `frames_of_threads`
    frame = sys._current_frames().get(thread.ident or 0)
    gc.enable()
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    with suppress(FileNotFoundError):  # the thread has ended meanwhile
        return frame is not None and status.read_text().rpartition(")")[2].split()[0] == "S"
    return False
