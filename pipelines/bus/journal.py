"""The journal of a run: one event a line, appended by the driver that holds the lease.

What is in the journal happened; everything else that shows events is made from it. A line is one
`write()`, so a crash tears at most the last one, and the next writer cuts a torn line off. A line
survives the death of the driver. A decisive line (`DECISIVE`) also survives the loss of the
machine, with everything before it. Of the other lines the last seconds may be lost; a reader that
had seen them gets `JournalCutShort` and starts over.

A run may go on for months. So the journal is cut into segments of bounded size
(`journal_segments`), and a driver that takes over reads only the newest. Others decide when old
segments are deleted.
"""

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType

import msgspec

from pipelines.bus.journal_reading import E, end_of, every_event, newest_event
from pipelines.bus.journal_segments import (
    APPENDING,
    SEGMENT_BYTES,
    JournalSummary,
    begin_segment,
    newest_segment,
)
from pipelines.disk.files import make_directory, make_durable
from pipelines.domain.clock import Clock
from pipelines.domain.errors import UNDECODABLE, Retryable, check
from pipelines.domain.events import (
    DamageRemembered,
    DriverReplaced,
    EngineEvent,
    Envelope,
    Event,
    JobStatusChanged,
    JournalContinued,
    LedgerAdvanced,
    LedgerBegun,
    RequestAccepted,
    RequestEnded,
    RunEnded,
    RunStarted,
    RunStopping,
    SettingsChanged,
)
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory

Announce = Callable[[RunId, int], None]

DECISIVE = (
    RunStarted,
    JobStatusChanged,
    SettingsChanged,
    RequestAccepted,
    RequestEnded,
    RunStopping,
    RunEnded,
    LedgerBegun,
    LedgerAdvanced,
    DamageRemembered,
)
"""Synced before anyone hears of them: what a person requested, how the run stands, what its output
consists of, and which files are damaged."""

_encoder = msgspec.json.Encoder()

log = logging.getLogger("ftdash.journal")


class JournalWriter:
    """Appends events with sequence numbers that have no gaps, not even across drivers.

    Needs the run's lease: two writers would interleave their sequences. Calls `check_held` before
    each line; it raises when the lease is lost.
    """

    def __init__(
        self,
        run_directory: RunDirectory,
        run_id: RunId,
        clock: Clock,
        announce: Announce,
        check_held: Callable[[], None] = lambda: None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._run_id = run_id
        self._clock = clock
        self._announce = announce
        self._check_held = check_held
        self._lock = threading.Lock()
        self._path = path = run_directory.journal_file
        self._segment_bytes = segment_bytes
        make_directory(path.parent)
        self._segment = newest_segment(path)
        self._file = os.open(self._segment.path, APPENDING | os.O_CREAT, 0o644)
        make_durable(path.parent)
        self._size, last = end_of(self._segment.path)
        self._full_size = segment_bytes  # from this size on, a new segment is due
        self._sequence = last.sequence if last else 0
        self._silent_ms = max(0.0, clock.wall_ms() - _heard_at_ms(last)) if last else 0.0
        self._opened_ms = clock.monotonic_ms()
        check_held()  # it may have taken a while
        os.ftruncate(self._file, self._size)

    @property
    def last_heard_ms(self) -> float:
        """Monotonic: when the driver before this one wrote its last line; without one, now.

        Computed from the wall clock, and so never later than when this journal was opened.
        """
        return self._opened_ms - self._silent_ms

    def append(self, event: Event, attempt: Attempt) -> Envelope:
        """From any thread. Raises Retryable if the disk takes no more; then nothing is kept."""
        check(isinstance(event, EngineEvent), "only events of the engine are journalled")
        with self._lock:
            self._check_held()
            if self._size >= self._full_size:
                self._begin_segment(attempt)
            envelope = self._next(event, attempt)
            self._write(_encoder.encode(envelope) + b"\n", is_decisive=isinstance(event, DECISIVE))
            self._sequence += 1
        self._announce(self._run_id, envelope.sequence)
        return envelope

    def newest(
        self, kind: type[E], is_wanted: Callable[[E], bool] = lambda event: True
    ) -> E | None:
        """The last wanted event of this kind, of any driver; reads from the end. None: there is
        none.

        Raises UndecodableEvent if a line that may hold it cannot be read.
        """
        return newest_event(self._path, kind, is_wanted)

    def every(self, kind: type[E]) -> list[E]:
        """All events of this kind that are kept, of any driver, oldest first.

        Raises UndecodableEvent, as `newest` does.
        """
        return every_event(self._path, kind)

    def _next(self, event: Event, attempt: Attempt) -> Envelope:
        return Envelope(
            sequence=self._sequence + 1,
            at_ms=self._clock.wall_ms(),
            run_id=self._run_id,
            attempt=attempt,
            event=event,  # type: ignore[arg-type]  # checked by `append`
        )

    def _begin_segment(self, attempt: Attempt) -> None:
        """Goes on in a new file, whose first line sums up what was before.

        1. Sync what was before: else a loss of power would tear a hole into the journal. 2. Make
        the new file appear whole. 3. Only then write to it. If that fails, the journal goes on as
        it is, and tries again later.
        """
        try:
            os.fdatasync(self._file)
            head = self._next(self._summary(), attempt)
            line = _encoder.encode(head) + b"\n"
            self._check_held()  # it has taken a while
            segment, file = begin_segment(self._path, self._segment.base + self._size, line)
        except (OSError, *UNDECODABLE) as error:
            check(newest_segment(self._path) == self._segment, "the newest segment is written to")
            self._full_size = self._size + self._segment_bytes
            log.warning("The journal of %s goes on in one file: %s", self._run_id, error)
            return
        os.close(self._file)
        self._file, self._segment, self._size = file, segment, len(line)
        self._full_size = len(line) + self._segment_bytes
        self._sequence = head.sequence

    def _summary(self) -> JournalContinued:
        summary = JournalSummary()
        with self._segment.path.open("rb") as file:
            for line in file:
                summary.on_line(line)
        return summary.continued()

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, line: bytes, *, is_decisive: bool) -> None:
        problem = "the disk took only a part"
        try:
            written = os.write(self._file, line)
            if is_decisive and written == len(line):
                os.fdatasync(self._file)
        except OSError as error:
            written, problem = 0, str(error)
        if written != len(line):
            self._check_held()  # what follows may be a successor's
            os.ftruncate(self._file, self._size)
            raise Retryable(f"The journal of {self._run_id} could not be written: {problem}.")
        self._size += written


def _heard_at_ms(last: Envelope) -> float:
    """When the driver itself last wrote: the control plane writes that it was replaced."""
    silent_ms = last.event.silent_ms if isinstance(last.event, DriverReplaced) else 0.0
    return last.at_ms - silent_ms
