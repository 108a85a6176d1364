"""The output of an installation at a terminal: lines for a person, and one object for scripts.

The object is the answer of `demo --check`, flat. For a person, Ctrl-C, SIGTERM and a closed
terminal all become one KeyboardInterrupt.
"""

import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, TextIO

import msgspec

EXACT = "exact"


class Comparison(msgspec.Struct, frozen=True):
    """One sink compared with the batch answer, in rows."""

    rows: int
    missing: int
    duplicated: int
    different: int
    sample_differences: list[str] = []

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.duplicated or self.different)


class OracleAnswer(msgspec.Struct, frozen=True):
    rows_expected: int
    files: Comparison
    sql: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """`verdict` is "exact", or one sentence: what differs, or which step of the check failed."""

    verdict: str = "not compared"
    rows_expected: int = 0
    missing: int = 0
    duplicated: int = 0
    different: int = 0
    checkpoints_completed: int = 0
    slots_killed: int = 0
    drivers_killed: int = 0
    restores: int = 0
    recovery_ms: list[float] = field(default_factory=list)
    files_output: str = ""
    sql_output: str = ""
    sinks: dict[str, int] = field(default_factory=dict)  # the rows in each
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.verdict == EXACT

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        return "\n".join(f"{name:<22} {value}" for name, value in self.as_json().items())

    def compared(self, rows_expected: int, sinks: dict[str, Comparison]) -> "CheckOutcome":
        return replace(
            self,
            verdict=verdict_on(rows_expected, sinks),
            rows_expected=rows_expected,
            missing=sum(sink.missing for sink in sinks.values()),
            duplicated=sum(sink.duplicated for sink in sinks.values()),
            different=sum(sink.different for sink in sinks.values()),
            sinks={name: sink.rows for name, sink in sinks.items()},
        )


def verdict_on(rows_expected: int, sinks: dict[str, Comparison]) -> str:
    """An empty answer is no success, because comparing nothing with nothing proves nothing."""
    if rows_expected == 0 or not sinks:
        return "The right answer is without a row; there was nothing to compare."
    differing = [
        f"{name}: {sink.missing} missing, {sink.duplicated} duplicated, {sink.different} different"
        for name, sink in sinks.items()
        if not sink.is_exact
    ]
    return f"Of {rows_expected} rows, {'; '.join(differing)}." if differing else EXACT


CLEAR_LINE = "\r\x1b[2K"
QUIET_PERIOD_S = 60.0  # how often a log file gets a status line of the same phase


class Console:
    """Lines that stay, and one status line that terminals show by overwriting it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._last_status_at = -QUIET_PERIOD_S
        self._phase = ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """Writes a line with the time since the start."""
        self.line(f"{self.elapsed_s:6.1f} s  {text}")

    def line(self, text: str) -> None:
        self._write(f"{CLEAR_LINE if self._is_terminal else ''}{text}\n")

    def status(self, text: str, phase: str = "") -> None:
        """A log file gets the status seldom, but always when another phase begins."""
        is_due = time.monotonic() - self._last_status_at >= QUIET_PERIOD_S
        if self._is_terminal:
            self._write(CLEAR_LINE + text)
        elif is_due or phase != self._phase:
            self._last_status_at, self._phase = time.monotonic(), phase
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
