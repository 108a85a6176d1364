"""Waiting for what becomes true elsewhere: bounded, and patient with a slow machine."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05


def wait_until(
    holds: Callable[[], bool],
    *,
    within_s: float = PATIENCE_S,
    otherwise: Callable[[], str] = lambda: "it did not come true",
) -> None:
    """Fails with what `otherwise` says then, if `holds` has not been true in time. What is true
    soon is seen soon, and what takes long is not asked all the time."""
    deadline_s, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"within {within_s:g} s {otherwise()}"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
