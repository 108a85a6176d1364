"""Turns records of Python's logging into lines of a run's log, in the driver and in slots.

A slot buffers a few hundred lines at most and sends them to the driver over its control connection,
its only way to the driver on a cluster. It drops and counts the lines that do not fit: code that
logs too much must not delay records or heartbeats. Secrets are masked here, before a line leaves
its process.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pipelines.bus.run_log import RunLog
from pipelines.domain.ids import Attempt
from pipelines.domain.log_lines import DRIVER, LogLine, shortened
from pipelines.domain.run import RunDirectory
from pipelines.domain.texts import masked

HELD_MAX = 500
SENT_MAX = 100
"""The limit of lines in one message."""

PAUSE_S = 0.5
"""The pause before a slot sends what it holds: with HELD_MAX, at most 1,000 lines a second."""

_OF_SUBTASK = re.compile(r".+\[[0-9]+\]")
_traceback = logging.Formatter()


def line_of(record: logging.LogRecord, where: str, attempt: Attempt) -> LogLine:
    """Returns a line of the run's log. `where` names the process, unless a subtask's thread logged
    the record: then the line names the subtask."""
    thread = record.threadName or ""
    trace = record.exc_text or ""
    if record.exc_info and not trace:
        trace = _traceback.formatException(record.exc_info)
    return LogLine(
        time=datetime.fromtimestamp(record.created, UTC),
        level=record.levelname,
        subtask=thread if _OF_SUBTASK.fullmatch(thread) else where,
        attempt=attempt,
        logger=record.name,
        message=shortened(masked(record.getMessage())),
        trace=shortened(masked(trace)),
    )


class SlotLog(logging.Handler):
    """Sends lines from its own thread. `send` takes lines and the count of those dropped before."""

    def __init__(
        self, slot: int, attempt: Attempt, send: Callable[[list[LogLine], int], object]
    ) -> None:
        super().__init__(logging.INFO)
        self._where = f"slot {slot}"
        self._attempt = attempt
        self._send = send
        self._held: list[LogLine] = []
        self._dropped = 0
        self._news = threading.Event()
        self._closed = threading.Event()
        self._sending = threading.Lock()

    def begin(self) -> None:
        """Takes every line that this process logs from now on, from INFO upwards."""
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(logging.INFO)
        threading.Thread(target=self._send_all, name="log lines", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        # The caller holds the lock of the handler.
        try:
            line = line_of(record, self._where, self._attempt)
        except Exception:  # a message whose arguments do not fit it must not end a subtask
            self.handleError(record)
            return
        if len(self._held) < HELD_MAX:
            self._held.append(line)
        else:
            self._dropped += 1
        self._news.set()

    def send_held(self) -> None:
        """Sends the held lines at once, because the process may end in the next moment."""
        with self._sending:
            while True:
                lines, dropped = self._take()
                if not lines:
                    return
                self._send(lines, dropped)

    def end(self) -> None:
        logging.getLogger().removeHandler(self)
        self.send_held()
        self._closed.set()
        self._news.set()

    def _take(self) -> tuple[list[LogLine], int]:
        self.acquire()
        try:
            lines, self._held = self._held[:SENT_MAX], self._held[SENT_MAX:]
            dropped, self._dropped = self._dropped, 0
        finally:
            self.release()
        return lines, dropped

    def _send_all(self) -> None:
        while self._news.wait() and not self._closed.wait(PAUSE_S):
            self._news.clear()
            self.send_held()


class _DriverLog(logging.Handler):
    def __init__(self, log: RunLog, attempt: Callable[[], Attempt]) -> None:
        super().__init__(logging.INFO)
        self._log = log
        self._attempt = attempt

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = line_of(record, DRIVER, self._attempt())
        except Exception:
            self.handleError(record)
            return
        self._log.keep([line])


@contextmanager
def kept_log(
    directory: RunDirectory, attempt: Callable[[], Attempt], check_held: Callable[[], None]
) -> Iterator[RunLog]:
    """Keeps what this process logs in the run's log, as long as it holds the lease."""
    log = RunLog(directory.log, check_held=check_held)
    handler = _DriverLog(log, attempt)
    logging.getLogger().addHandler(handler)
    try:
        yield log
    finally:
        logging.getLogger().removeHandler(handler)
        log.close()
