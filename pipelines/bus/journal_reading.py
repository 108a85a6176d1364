"""Reads a run's journal: forwards from an offset, or backwards from the end for the newest.

The path of its first segment names a journal, even once that segment is deleted; an offset is a
place in the whole journal. A reader needs no lease and may read while a line is being written: only
complete lines count.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from pipelines.bus.journal_segments import SUMMED_UP, Segment, newest_segment, segments_of
from pipelines.domain.errors import UNDECODABLE
from pipelines.domain.events import EngineEvent, Envelope, Event, JournalContinued

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
