"""The journal of a run: one event per line, which the driver with the lease appends.

The journal records what happened; everything else that shows events is derived from it. A line is
one `write()`, so a crash tears at most the last one, and the next writer cuts a torn line off. A
line survives the death of the driver. A decisive line (`DECISIVE`) also survives the loss of the
machine, with everything before it. The loss may cost other lines of the last seconds; a reader that
had seen them gets `JournalCutShort` and starts over.

A reader needs no lease. It reads forwards from an offset, or backwards from the end for the newest,
even while the driver writes a line: only complete lines count. The path of its first segment
identifies a journal, even after that segment is deleted. An offset is a place in the whole journal.

A run may take months. So the journal consists of segments of bounded size (`journal_segments`), and
a driver that takes over reads only the newest. Others decide when old segments are deleted.
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
    """Returns the events of complete lines from `byte_offset` on, and the offset after them.

    Reads at most one segment. Raises UndecodableEvent if the first unread line cannot be read;
    returns the events before such a line first. Raises JournalCutShort if no line ends at
    `byte_offset` any more; if one does by chance, the sequence of the first event shows it. Raises
    JournalShortened if the segment with that line was deleted.
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
    """Yields all kept lines, oldest first. Raises what `read_journal` raises."""
    envelopes, offset = read_journal(path, first_offset(path))
    while envelopes:
        yield from envelopes
        envelopes, offset = read_journal(path, offset)


def first_offset(path: Path) -> int:
    """Returns where the kept part of the journal begins."""
    return min((segment.base for segment in segments_of(path)), default=0)


def last_event(path: Path) -> EngineEvent | None:
    """Returns the event of the last complete line, or None if there is none yet."""
    segment = newest_segment(path)
    if not segment.path.exists():
        return None
    _, last = end_of(segment.path)
    return last.event if last else None


def newest_event(
    path: Path, kind: type[E], is_wanted: Callable[[E], bool] = lambda event: True
) -> E | None:
    """Returns the last wanted event of this kind, or None. Reads from the end.

    Raises UndecodableEvent if a line that may hold it cannot be read.
    """
    for line in _lines_naming(kind, path):
        event = _decode_line(path, line).event
        if isinstance(event, kind) and is_wanted(event):
            return event
    return None


def newest_envelope(path: Path, kind: type[Event]) -> Envelope | None:
    """Returns the newest line of this kind, or None. Raises what `newest_event` raises."""
    for line in _lines_naming(kind, path):
        envelope = _decode_line(path, line)
        if isinstance(envelope.event, kind):
            return envelope
    return None


def every_event(path: Path, kind: type[E]) -> list[E]:
    """Returns all kept events of this kind, oldest first. Raises what `newest_event` raises."""
    events = [_decode_line(path, line).event for line in _lines_naming(kind, path)]
    return [event for event in reversed(events) if isinstance(event, kind)]


def end_of(path: Path) -> tuple[int, Envelope | None]:
    """Returns one segment's size without a torn last line, and its last complete line."""
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
    """Returns the segment with the line that begins there, and where the next one begins."""
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
    """Yields lines that may hold an event of this kind, newest first.

    Stops at the newest summary if that sums up this kind.
    """
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
"""The events that are synced before they are announced: what a person requested, the state of the
run, what its output consists of, and which files are damaged."""

_encoder = msgspec.json.Encoder()

log = logging.getLogger("ftdash.journal")


class JournalWriter:
    """Appends events with sequence numbers that have no gaps, not even across drivers.

    Needs the run's lease: two writers would interleave their sequences. Calls `check_held` before
    each line, which raises if the lease is lost.
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
        """When the previous driver wrote its last line (monotonic); without one, now.

        Computed from the wall clock, and so never later than when this journal was opened.
        """
        return self._opened_ms - self._silent_ms

    def append(self, event: Event, attempt: Attempt) -> Envelope:
        """Any thread may call it. Raises Retryable, keeping nothing, if the disk takes no more."""
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
        """Returns the last wanted event of this kind, of any driver, or None. Reads from the end.

        Raises UndecodableEvent if a line that may hold it cannot be read.
        """
        return newest_event(self._path, kind, is_wanted)

    def every(self, kind: type[E]) -> list[E]:
        """Returns all kept events of this kind, of any driver, oldest first.

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
        """Continues in a new file, whose first line sums up everything before it.

        1. Sync what was before: otherwise, a loss of power could leave a hole in the journal. 2.
        Make the new file appear whole. 3. Only then write to it. If that fails, the journal
        continues in the old file, and tries again later.
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
            log.warning("The journal of %s continues in one file: %s", self._run_id, error)
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
    """When the driver itself last wrote; the control plane writes `DriverReplaced` for it."""
    silent_ms = last.event.silent_ms if isinstance(last.event, DriverReplaced) else 0.0
    return last.at_ms - silent_ms
