"""The journal of a run: one event a line, appended by the driver with the lease, read by others.

What is in the journal happened; everything else that shows events is made from it. A line is one
`write()`, so a crash tears at most the last one, and the next writer cuts a torn line off. A line
survives the death of the driver. A decisive line (`DECISIVE`) also survives the loss of the
machine, with everything before it. Of the other lines the last seconds may be lost; a reader that
had seen them gets `JournalCutShort` and starts over.

A reader needs no lease, reads forwards from an offset or backwards from the end for the newest, and
may read while a line is being written: only complete lines count. The path of its first segment
names a journal, even once that segment is deleted; an offset is a place in the whole journal.

A run may go on for months. So the journal is cut into segments of bounded size
(`journal_segments`), and a driver that takes over reads only the newest. Others decide when old
segments are deleted.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import msgspec

from pipelines.bus.journal_segments import (
    APPENDING,
    SEGMENT_BYTES,
    SUMMED_UP,
    JournalSummary,
    Segment,
    begin_segment,
    newest_segment,
    segments_of,
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
    StartUndone,
)
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory

E = TypeVar("E", bound=EngineEvent)

READ_BYTES_MAX = 8 << 20
_TAIL_BYTES = 64 << 10

_decoder = msgspec.json.Decoder(Envelope)


class UndecodableEvent(Exception):
    """This program cannot read a complete line of a journal. Names file and line."""


class JournalCutShort(Exception):
    """Lines that were read are gone: the machine died before they were on its disk."""


class JournalShortened(JournalCutShort):
    """Lines that were not read yet are gone: their segment was deleted for its age."""


def read_journal(
    path: Path, byte_offset: int, bytes_max: int = READ_BYTES_MAX
) -> tuple[list[Envelope], int]:
    """Events of complete lines from `byte_offset` on, and the offset to go on from.

    Reads at most one segment. Raises UndecodableEvent if the first unread line cannot be read;
    returns the events before such a line first. Raises JournalCutShort if no line ends at
    `byte_offset` any more; if one does by chance, the sequence of the first event shows it. Raises
    JournalShortened if the segment that had it was deleted.
    """
    segment, end = _segment_at(path, byte_offset)
    start = byte_offset - segment.base
    try:
        with segment.path.open("rb") as file:
            if start:
                file.seek(start - 1)
                if file.read(1) != b"\n":
                    raise JournalCutShort(f"{path} has no line that ends at {byte_offset}.")
            if end is not None:
                bytes_max = min(bytes_max, end - byte_offset)
            block = file.read(bytes_max)
            if len(block) == bytes_max and b"\n" not in block:
                block += file.readline()
            if end is not None and not block:
                raise JournalShortened(f"{path} has nothing from byte {byte_offset} to {end}.")
    except FileNotFoundError as error:
        if byte_offset:
            raise JournalCutShort(f"{path} is not there any more.") from error
        return [], byte_offset
    envelopes, read = _decode_lines(segment.path, start, block)
    return envelopes, segment.base + read


def every_envelope(path: Path) -> Iterator[Envelope]:
    """The journal as far as it is written, from the oldest line that is kept. Raises what
    `read_journal` raises."""
    envelopes, offset = read_journal(path, first_offset(path))
    while envelopes:
        yield from envelopes
        envelopes, offset = read_journal(path, offset)


def first_offset(path: Path) -> int:
    """Where the part of the journal that is kept begins."""
    return min((segment.base for segment in segments_of(path)), default=0)


def last_event(path: Path) -> EngineEvent | None:
    """The event of the last complete line; None if there is none yet."""
    segment = newest_segment(path)
    if not segment.path.exists():
        return None
    _, last = end_of(segment.path)
    return last.event if last else None


def newest_event(
    path: Path, kind: type[E], is_wanted: Callable[[E], bool] = lambda event: True
) -> E | None:
    """The last wanted event of this kind; reads from the end. None: there is none.

    Raises UndecodableEvent if a line that may hold it cannot be read.
    """
    for line in _lines_naming(kind, path):
        event = _decode_line(path, line).event
        if isinstance(event, kind) and is_wanted(event):
            return event
    return None


def newest_envelope(path: Path, kind: type[Event]) -> Envelope | None:
    """The line of the last event of this kind. Raises what `newest_event` raises."""
    for line in _lines_naming(kind, path):
        envelope = _decode_line(path, line)
        if isinstance(envelope.event, kind):
            return envelope
    return None


def every_event(path: Path, kind: type[E]) -> list[E]:
    """All kept events of this kind, oldest first. Raises what `newest_event` raises."""
    events = [_decode_line(path, line).event for line in _lines_naming(kind, path)]
    return [event for event in reversed(events) if isinstance(event, kind)]


def end_of(path: Path) -> tuple[int, Envelope | None]:
    """One segment's size without a torn last line, and its last complete line."""
    size, tail_bytes = path.stat().st_size, _TAIL_BYTES
    while True:
        start = max(0, size - tail_bytes)
        with path.open("rb") as file:
            file.seek(start)
            tail = file.read(size - start)
        lines = tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)
        if start == 0 or len(lines) > 1:  # the first line of a tail may be cut in two
            break
        tail_bytes *= 2
    complete_size = start + tail.rfind(b"\n") + 1
    if not lines:
        return complete_size, None
    (last,), _ = _decode_lines(path, complete_size - len(lines[-1]), lines[-1])
    return complete_size, last


def _decode_lines(path: Path, start: int, block: bytes) -> tuple[list[Envelope], int]:
    envelopes: list[Envelope] = []
    offset = start
    for line in block[: block.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            envelopes.append(_decoder.decode(line))
        except UNDECODABLE as error:
            if envelopes:
                break
            raise UndecodableEvent(
                f"{path}, line {_line_number(path, offset)}, cannot be read: {error}."
            ) from error
        offset += len(line)
    return envelopes, offset


def _decode_line(path: Path, line: bytes) -> Envelope:
    try:
        return _decoder.decode(line)
    except UNDECODABLE as error:
        raise UndecodableEvent(f"A line of {path} cannot be read: {error}.") from error


def _segment_at(path: Path, byte_offset: int) -> tuple[Segment, int | None]:
    """The segment with the line that begins there, and where the next segment begins."""
    segment, end = Segment(0, path), None
    for each in segments_of(path):
        if each.base > byte_offset:
            end = each.base
            break
        segment = each
    if end is not None and not segment.path.exists():
        raise JournalShortened(
            f"What {path} held up to byte {end} was deleted; it was read up to byte {byte_offset}."
        )
    return segment, end


def _lines_naming(kind: type[Event], path: Path) -> Iterator[bytes]:
    """Lines that may hold an event of this kind, newest first; stops at the newest summary if that
    sums up this kind."""
    name = kind.__name__.encode()
    for segment in reversed(segments_of(path)):
        first = b""
        for line in _lines_from_the_end(segment.path):
            first = line
            if name in line:
                yield line
        if segment.base and kind in SUMMED_UP:
            summary = _decode_line(path, first).event
            kept = summary.kept if isinstance(summary, JournalContinued) else []
            yield from (line for line in map(bytes, reversed(kept)) if name in line)
            return


def _lines_from_the_end(path: Path) -> Iterator[bytes]:
    """Yields complete lines; the first is empty."""
    carried = b""
    with path.open("rb") as file:
        start = _complete_bytes(file)
        while start > 0:
            length = min(_TAIL_BYTES, start)
            start -= length
            file.seek(start)
            first, *lines = (file.read(length) + carried).split(b"\n")
            carried = first  # its beginning may lie in the block before
            yield from reversed(lines)
    yield carried


def _complete_bytes(file: BinaryIO) -> int:
    """The file's size without a torn last line."""
    start = file.seek(0, os.SEEK_END)
    while start > 0:
        end, start = start, max(0, start - _TAIL_BYTES)
        file.seek(start)
        line_end = file.read(end - start).rfind(b"\n")
        if line_end >= 0:
            return start + line_end + 1
    return 0


def _line_number(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return file.read(offset).count(b"\n") + 1


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
    StartUndone,
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
