"""Reads the journal of a run: forwards from an offset, or what was newest, from its end.

A reader needs no lease, and may come while a line is being written: only complete lines count.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.events import EngineEvent, Envelope

E = TypeVar("E", bound=EngineEvent)

READ_BYTES_MAX = 8 << 20
_TAIL_BYTES = 64 << 10

_decoder = msgspec.json.Decoder(Envelope)


class UndecodableEvent(Exception):
    """A complete line of a journal that this program cannot read. Names file and line."""


class JournalCutShort(Exception):
    """Lines that were read are gone: the machine was lost before they were on its disk."""


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
    _, last = end_of(path)
    return last.event if last else None


def newest_event(path: Path, kind: type[E]) -> E | None:
    """The last one of this kind; reads from the end. None: there is none.

    Raises UndecodableEvent when a line that may hold it cannot be read.
    """
    name = kind.__name__.encode()
    for line in _lines_from_the_end(path):
        if name not in line:
            continue
        event = _decode_line(path, line).event
        if isinstance(event, kind):
            return event
    return None


def every_event(path: Path, kind: type[E]) -> list[E]:
    """All of this kind, oldest first; reads the whole journal. Raises as `newest_event` does."""
    name = kind.__name__.encode()
    lines = [line for line in _lines_from_the_end(path) if name in line]
    events = [_decode_line(path, line).event for line in reversed(lines)]
    return [event for event in events if isinstance(event, kind)]


def end_of(path: Path) -> tuple[int, Envelope | None]:
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
