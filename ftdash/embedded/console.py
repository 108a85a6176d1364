"""The terminal output of a running installation.

Turns Ctrl-C, SIGTERM and a closed terminal into one KeyboardInterrupt.
"""

import signal
import sys
import time
from types import FrameType
from typing import TextIO

CLEAR_LINE = "\r\x1b[2K"
QUIET_PERIOD_S = 60.0  # how often a log file gets a status line


class Console:
    """Lines that stay, and one status line that terminals show by overwriting it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._last_status_at = -QUIET_PERIOD_S

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """A line with the time since the start."""
        self.line(f"{self.elapsed_s:6.1f} s  {text}")

    def line(self, text: str) -> None:
        self._write(f"{CLEAR_LINE if self._is_terminal else ''}{text}\n")

    def status(self, text: str) -> None:
        if self._is_terminal:
            self._write(CLEAR_LINE + text)
        elif time.monotonic() - self._last_status_at >= QUIET_PERIOD_S:
            self._last_status_at = time.monotonic()
            self._write(text + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


ENDING = (signal.SIGINT, signal.SIGTERM)


def end_when_asked() -> None:
    """Sets the handlers explicitly, because a script's background job starts with SIGINT ignored.

    SIGHUP stays ignored if it was: a process under nohup should outlive the terminal.
    """
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    for number in (*ENDING, signal.SIGHUP) if hangup else ENDING:
        signal.signal(number, end_once)


def end_once(number: int, _: FrameType | None) -> None:
    # Ending takes a bounded time; an impatient second Ctrl-C must not cut it short.
    for each in (*ENDING, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)
