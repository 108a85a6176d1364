"""The journal of a run: one event a line, appended by the driver that holds the lease.

What is in the journal happened; everything else that shows events is made from it. A line is one
`write()`, so that a crash tears at most the last one, and a torn line is cut off by the next
writer. A line survives the death of the driver. What somebody was told by it (`DECISIVE`) survives
the loss of the machine, too, with everything before it; of the rest the last seconds may be gone,
and a reader that had seen them is told (`JournalCutShort`) and starts over.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from pipelines.disk.directories import make_directory, make_durable
from pipelines.domain.clock import Clock
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.errors import Retryable, check
from pipelines.domain.events import (
    EngineEvent,
    Envelope,
    Event,
    JobStatusChanged,
    LedgerAdvanced,
    LedgerBegun,
    RequestEnded,
    RunEnded,
    RunStarted,
    RunStopping,
    SettingsChanged,
)
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory

E = TypeVar("E", bound=EngineEvent)
Announce = Callable[[RunId, int], None]

READ_BYTES_MAX = 8 << 20
DECISIVE = (
    RunStarted,
    JobStatusChanged,
    SettingsChanged,
    RequestEnded,
    RunStopping,
    RunEnded,
    LedgerBegun,
    LedgerAdvanced,
)
"""Synced before anybody hears of them: what a person asked for, how the run stands, and what its
output consists of."""

_TAIL_BYTES = 64 << 10

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)


class UndecodableEvent(Exception):
    """A complete line of a journal that this program cannot read. Names file and line."""


class JournalCutShort(Exception):
    """Lines that were read are gone: the machine was lost before they were on its disk."""


class JournalWriter:
    """Appends events with sequence numbers that have no gaps, across drivers too.

    Needs the run's lease: two writers would interleave their sequences. `check_held` is asked
    before each line and raises when the lease is lost.
    """

    def __init__(
        self,
        run_directory: RunDirectory,
        run_id: RunId,
        clock: Clock,
        announce: Announce,
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_id = run_id
        self._clock = clock
        self._announce = announce
        self._check_held = check_held
        self._lock = threading.Lock()
        self._path = path = run_directory.journal_file
        make_directory(path.parent)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        make_durable(path.parent)
        self._size, last = _end_of(path)
        self._sequence = last.sequence if last else 0
        self._silent_ms = max(0, clock.wall_ms() - last.at_ms) if last else 0
        self._opened_ms = clock.monotonic_ms()
        os.ftruncate(self._file, self._size)

    @property
    def last_heard_ms(self) -> float:
        """Monotonic: when the driver before this one wrote its last line; without one, now.

        Told by the wall clock, so never later than when this journal was opened.
        """
        return self._opened_ms - self._silent_ms

    def append(self, event: Event, attempt: Attempt) -> Envelope:
        """From any thread. Raises Retryable when the disk takes no more; nothing is then kept."""
        check(isinstance(event, EngineEvent), "only events of the engine are journalled")
        with self._lock:
            self._check_held()
            envelope = Envelope(
                sequence=self._sequence + 1,
                at_ms=self._clock.wall_ms(),
                run_id=self._run_id,
                attempt=attempt,
                event=event,  # type: ignore[arg-type]  # checked above
            )
            self._write(_encoder.encode(envelope) + b"\n", is_decisive=isinstance(event, DECISIVE))
            self._sequence += 1
        self._announce(self._run_id, envelope.sequence)
        return envelope

    def newest(self, kind: type[E]) -> E | None:
        """The last event of this kind, of any driver; reads from the end. None: there is none.

        Raises UndecodableEvent when a line that may hold it cannot be read.
        """
        name = kind.__name__.encode()
        for line in _lines_from_the_end(self._path):
            if name not in line:
                continue
            event = _decode_line(self._path, line).event
            if isinstance(event, kind):
                return event
        return None

    def every(self, kind: type[E]) -> list[E]:
        """All events of this kind, of any driver, oldest first; reads the whole journal.

        Raises UndecodableEvent, as `newest` does.
        """
        name = kind.__name__.encode()
        lines = [line for line in _lines_from_the_end(self._path) if name in line]
        events = [_decode_line(self._path, line).event for line in reversed(lines)]
        return [event for event in events if isinstance(event, kind)]

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
            os.ftruncate(self._file, self._size)
            raise Retryable(f"The journal of {self._run_id} could not be written: {problem}.")
        self._size += written


def read_journal(
    path: Path, byte_offset: int, bytes_max: int = READ_BYTES_MAX
) -> tuple[list[Envelope], int]:
    """Events of complete lines from `byte_offset` on, and the offset to go on from.

    Raises UndecodableEvent when the first unread line cannot be read; events before such a
    line are returned first. Raises JournalCutShort when no line ends at `byte_offset` any more;
    where one does by chance, the sequence of the first event tells.
    """
    try:
        with path.open("rb") as file:
            if byte_offset:
                file.seek(byte_offset - 1)
                if file.read(1) != b"\n":
                    raise JournalCutShort(f"{path} has no line that ends at {byte_offset}.")
            block = file.read(bytes_max)
            if len(block) == bytes_max and b"\n" not in block:
                block += file.readline()
    except FileNotFoundError as error:
        if byte_offset:
            raise JournalCutShort(f"{path} is not there any more.") from error
        return [], byte_offset
    return _decode_lines(path, byte_offset, block)


def every_envelope(path: Path) -> Iterator[Envelope]:
    """The whole journal as far as it is written, from its beginning; raises as `read_journal`."""
    envelopes, offset = read_journal(path, 0)
    while envelopes:
        yield from envelopes
        envelopes, offset = read_journal(path, offset)


def last_event(path: Path) -> EngineEvent | None:
    """The event of the last complete line; None while there is none."""
    if not path.exists():
        return None
    _, last = _end_of(path)
    return last.event if last else None


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


def _lines_from_the_end(path: Path) -> Iterator[bytes]:
    carried = b""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start > 0:
            length = min(_TAIL_BYTES, start)
            start -= length
            file.seek(start)
            first, *lines = (file.read(length) + carried).split(b"\n")
            carried = first  # its beginning may lie in the block before
            yield from reversed(lines)
    yield carried


def _line_number(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return file.read(offset).count(b"\n") + 1


def _end_of(path: Path) -> tuple[int, Envelope | None]:
    """Size without a torn last line, and the last complete line."""
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
