"""Names the running and the longest tests if SIGTERM ends the suite, as a time limit does."""

import signal
import sys
import time
from types import FrameType

import pytest

LONGEST = 20


class RunningTests:
    """A plugin of the process that starts the others; they report each start and end to it."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}
        self._took_s: dict[str, float] = {}

    def watch(self) -> None:
        signal.signal(signal.SIGTERM, self._told_to_end)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began_s[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._took_s[nodeid] = time.monotonic() - self._began_s.pop(nodeid)

    def text(self) -> str:
        now_s = time.monotonic()
        running = [f"running for {now_s - s:.0f} s: {each}" for each, s in self._began_s.items()]
        longest = sorted(self._took_s.items(), key=lambda each: each[1])[-LONGEST:]
        return "\n".join([*running, *(f"took {s:.0f} s: {each}" for each, s in longest)])

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:
        # At once, because SIGKILL may follow before the summary.
        print(f"\n{self.text()}", file=sys.stderr, flush=True)
        pytest.exit(f"told to end by {signal.Signals(number).name}", returncode=128 + number)
