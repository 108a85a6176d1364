"""Entries of a Redis stream: their text, their offsets, and whether one was lost unread. Pure.

The text of an entry that does not fit its columns is a JSON object of its fields, in the form of a
quarantine line; it becomes a row once the columns change. Binary values are base64, so that nothing
is lost; in other values, bytes that are not text are escaped.

Ids of stream entries, `<milliseconds>-<number>`, fit 64 bits: 44 bits of milliseconds reach the
year 2527; 19 bits number the entries of one millisecond. An id beyond that is refused by name: two
entries must never get the same offset.

A stream reports how many entries were ever added, how many it has, the first one, and the largest
id that was deleted by its id. Trimming does not move `max-deleted-entry-id` (seen with Valkey 9.1),
and removes entries from the old end only. So there are three cases:

- No entry before the position exists any more. Then the number of missing entries has to be the
  number when the run began, wherever they had been, plus those read since. If more are missing,
  some were lost; if fewer, this is another stream of that name.
- Such an entry exists, so nothing behind the position was trimmed. A deletion by id shows, because
  it moves the largest deleted id.
- A deletion does not show if an older hole lies ahead. So the entries up to that hole are counted
  when the run begins, and the reader must get as many.

Redis gives a stream no identity: one that was deleted and created again has the same name, and may
have the same ids. So a position names an entry of the stream, with a digest of its contents. One
case goes unnoticed: a new stream that has lost, by the time of the check, exactly as many entries
as the old one had lost or had read.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.json_rows import UnfitValue, typed
from pipelines.connectors.source import Offsets, PastGap, UnreadableText
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import UNDECODABLE, InputLost, Rejected


def text_of_fields(fields: Sequence[bytes], schema: pa.Schema) -> bytes:
    """`fields`: names and values in turn; if a name repeats, the first one counts."""
    binary = {column.name for column in schema if pa.types.is_binary(column.type)}
    found: dict[str, str] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        column = _escaped(name)
        is_binary = column in binary
        found.setdefault(column, base64.b64encode(value).decode() if is_binary else _escaped(value))
    return msgspec.json.encode(found)


def row_of_fields(text: str, schema: pa.Schema) -> pa.RecordBatch:
    """Makes a row of an entry's text. Raises UnreadableText."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, object])
        values = [_value(fields.get(column.name), column) for column in schema]
        columns = [typed([v], column) for v, column in zip(values, schema, strict=True)]
    except UNDECODABLE as error:
        raise UnreadableText("it is not one JSON object") from error
    except UnfitValue as unfit:
        raise UnreadableText(f"it does not fit column {unfit.column}: {unfit}") from unfit
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(found: object, column: pa.Field) -> bytes | None:
    """The bytes as in the entry; a row that an operator got has JSON's numbers and booleans."""
    if found is None:
        return None
    if not isinstance(found, str):
        return msgspec.json.encode(found)
    if not pa.types.is_binary(column.type):
        return found.encode()
    try:
        return base64.b64decode(found, validate=True)
    except ValueError as error:
        raise UnfitValue(0, column.name, "it is no base64") from error


def _escaped(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


MILLISECONDS_MAX = 1 << 44
NUMBERS_MAX = 1 << 19
_NUMBER_BITS = 19


def offset_of(entry_id: bytes) -> int:
    """Raises Rejected for an id that does not fit."""
    milliseconds, number = (int(part) for part in entry_id.split(b"-"))
    if milliseconds >= MILLISECONDS_MAX or number >= NUMBERS_MAX:
        raise Rejected(
            f"The stream entry id {entry_id.decode()} is too large: milliseconds must be below"
            f" 2^44 and the number behind them below 2^19."
        )
    return (milliseconds << _NUMBER_BITS) | number


def offsets_of(entry_ids: Sequence[bytes]) -> Offsets:
    """Converts all at once. Raises Rejected for the first id that does not fit."""
    ids = pa.array(entry_ids, pa.string())
    parts = pc.split_pattern(ids, "-").flatten()
    numbers = np.asarray(parts.cast(pa.uint64())).reshape(-1, 2)
    too_large = (numbers >= np.array([MILLISECONDS_MAX, NUMBERS_MAX], np.uint64)).any(axis=1)
    if too_large.any():
        offset_of(entry_ids[int(too_large.argmax())])
    joined = (numbers[:, 0] << np.uint64(_NUMBER_BITS)) | numbers[:, 1]
    return np.asarray(joined, np.int64)


def id_of(offset: int) -> str:
    return f"{offset >> _NUMBER_BITS}-{offset & (NUMBERS_MAX - 1)}"


DIGEST_BYTES = 8
PARTS = 4


@dataclass(frozen=True, slots=True)
class MarkedEntry:
    """The newest entry that was read, or the first one to read."""

    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class StreamMark:
    """What a position remembers of its stream.

    `max_deleted`: the stream's largest deleted id when the run began. `due`: how many entries are
    passed once all up to that id are read; None if it is not ahead, or if an earlier version wrote
    this.
    """

    max_deleted: int = 0
    due: int | None = None
    entry: MarkedEntry | None = None

    @classmethod
    def of(cls, version: str | None) -> "StreamMark":
        """Parses a position's `version`; an earlier release stored `max_deleted` alone."""
        max_deleted, due, entry_id, digest = (f"{version or 0}".split(":") + [""] * PARTS)[:PARTS]
        return cls(
            int(max_deleted),
            int(due) if due else None,
            MarkedEntry(offset_of(entry_id.encode()), digest) if entry_id else None,
        )

    def __str__(self) -> str:
        due = "" if self.due is None else str(self.due)
        entry = "" if self.entry is None else f"{id_of(self.entry.offset)}:{self.entry.digest}"
        return f"{self.max_deleted}:{due}:{entry}"

    def at(self, offset: int, fields: Sequence[bytes]) -> "StreamMark":
        return replace(self, entry=MarkedEntry(offset, digest_of(fields)))


def digest_of(fields: Sequence[bytes]) -> str:
    """Digests an entry's fields and values; their lengths distinguish `a, bc` from `ab, c`."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        digest.update(b"%d:" % len(field))
        digest.update(field)
    return digest.hexdigest()


def marked_offset(split: SplitProgress) -> int | None:
    """The offset of the mark's entry; None: an earlier version stored none."""
    entry = StreamMark.of(split.version).entry
    return None if entry is None else entry.offset


Fields = Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamExtent:
    """The state of a stream at one moment. `first` None: the stream is empty."""

    added: int
    length: int
    last: int  # the newest id ever given
    max_deleted: int
    first: int | None
    first_entry: MarkedEntry | None = None
    last_entry: MarkedEntry | None = None

    @classmethod
    def of(cls, answer: Mapping[bytes, object]) -> "StreamExtent":
        """Reads the answer of XINFO STREAM. Raises Rejected if the server is older than 7.0."""
        if b"entries-added" not in answer:
            raise Rejected("The Redis server does not count what was trimmed; use 7.0 or newer.")
        first = _entry(answer[b"first-entry"])
        return cls(
            added=_number(answer[b"entries-added"]),
            length=_number(answer[b"length"]),
            last=offset_of(_bytes(answer[b"last-generated-id"])),
            max_deleted=offset_of(_bytes(answer[b"max-deleted-entry-id"])),
            first=None if first is None else first.offset,
            first_entry=first,
            last_entry=_entry(answer[b"last-entry"]),
        )

    @property
    def removed(self) -> int:
        return self.added - self.length

    @property
    def has_hole_ahead(self) -> bool:
        """True if a hole lies ahead of a reader that begins with the first entry."""
        return self.first is not None and self.max_deleted > self.first

    def from_oldest(self, name: str, end_offset: int | None, ahead: int | None) -> SplitProgress:
        """Returns the position of the first entry. Entries deleted before do not count as lost.

        `ahead`: how many entries there are up to the hole that lies ahead.
        """
        begin = self.last + 1 if self.first is None else self.first
        due = None if ahead is None else self.removed + ahead
        mark = StreamMark(self.max_deleted, due, self.first_entry)
        # Includes those deleted between existing entries: `removed` will always count them too.
        return SplitProgress(name, begin, self.removed, end_offset, str(mark))

    def from_newest(self, name: str) -> SplitProgress:
        mark = StreamMark(self.max_deleted, None, self.last_entry)
        return SplitProgress(name, self.last + 1, self.added, None, str(mark))

    def past_gap(self, split: SplitProgress, ahead: int | None) -> PastGap | None:
        """Returns the position of the first entry, if all entries before it are gone.

        `ahead`: as for `from_oldest`. None: older entries exist, so those that are gone lay between
        others.
        """
        lost = self.lost_before(split)
        if lost is None:
            return None
        return PastGap(self.from_oldest(split.name, split.end_offset, ahead), lost)

    def lost_before(self, split: SplitProgress) -> int | None:
        """How many entries are gone unread, at most, if the first one lies behind the position.

        None: older entries exist, so how many are gone between others is unknown.
        """
        return max(0, self.removed - split.passed) if self._begin > split.offset else None

    def oldest(self, split: SplitProgress, marked: Fields | None) -> int:
        """See `GrowingSource.oldest`. `marked`: the present contents of the mark's entry.

        Raises InputLost if this is another stream of that name.
        """
        mark = StreamMark.of(split.version)
        if self._is_another(split, mark, marked):
            raise InputLost(
                f"The stream {split.name} is another one than that which was read: it was deleted"
                " and made again. The entries of the old one that were not read are gone."
            )
        if self.max_deleted >= split.offset and self.max_deleted > mark.max_deleted:
            return max(self.max_deleted + 1, self.first or 0)
        begin = self._begin
        if begin > split.offset:
            return begin if self.removed > split.passed else 0
        is_first = begin == split.offset
        is_lost = self.removed > split.passed - (0 if is_first else 1)
        return self.max_deleted + 1 if is_lost else 0

    def _is_another(self, split: SplitProgress, mark: StreamMark, marked: Fields | None) -> bool:
        if self.last + 1 < split.offset or self.added < split.passed:
            return True
        if self.max_deleted < mark.max_deleted:
            return True
        has_read_ones = self._begin < split.offset
        if not has_read_ones and self.removed < split.passed:
            return True
        if has_read_ones and self.removed >= split.passed and self.max_deleted < split.offset:
            return True
        entry = mark.entry
        if entry is None:
            return False
        if marked is not None:
            return digest_of(marked) != entry.digest
        if entry.offset >= split.offset:  # nothing was read yet, so the entry has been lost
            return has_read_ones or self.removed <= split.passed
        return self._begin < entry.offset and self.max_deleted < entry.offset

    @property
    def _begin(self) -> int:
        return self.last + 1 if self.first is None else self.first


def oldest_of(extent: StreamExtent | None, split: SplitProgress, marked: Fields | None) -> int:
    """See `StreamExtent.oldest`. `extent` None: no stream exists; raises InputLost if one did."""
    if extent is not None:
        return extent.oldest(split, marked)
    if split.offset:
        raise InputLost(f"The stream {split.name} is gone, with the entries not read yet.")
    return 0


def passed_by(
    split: SplitProgress, offsets: Offsets, last: Fields, *, is_all: bool
) -> SplitProgress:
    """The position after the entries read from `split` on; `last` holds the fields of the last.

    `is_all`: there are no more at the moment. Raises Rejected if entries are missing up to the hole
    that lay ahead.
    """
    mark, count = StreamMark.of(split.version), len(offsets)
    if mark.due is not None:
        up_to_hole = int(np.searchsorted(offsets, mark.max_deleted, side="right"))
        if up_to_hole < count or is_all:
            _check_complete(split, mark, split.passed + up_to_hole)
            mark = replace(mark, due=None)
    if not count:
        return msgspec.structs.replace(split, version=str(mark))
    newest = int(offsets[-1])
    return msgspec.structs.replace(
        split,
        offset=newest + 1,
        passed=split.passed + count,
        version=str(mark.at(newest, last)),
    )


def _check_complete(split: SplitProgress, mark: StreamMark, passed: int) -> None:
    missing = (mark.due or 0) - passed
    if missing > 0:
        raise InputLost(
            f"The stream {split.name}: {missing:,} of the entries up to {id_of(mark.max_deleted)}"
            " that were there when the run began were deleted before they were read. Which ones is"
            " unknown, because an entry behind them had been deleted earlier."
        )


def pending_of(extent: StreamExtent | None, split: SplitProgress, given: int) -> int | None:
    """How many entries are left after the next `given` ones.

    None for a bounded split: how many of the entries lie before its end is unknown.
    """
    if extent is None:
        return 0
    if split.end_offset is not None:
        return None
    return max(0, min(extent.added - split.passed, extent.length) - given)


def range_gone(split: SplitProgress, oldest: int, extent: StreamExtent | None) -> str:
    """Says in a sentence what is gone; if `extent` is None, it is unknown, so counts nothing."""
    lost = extent.lost_before(split) if extent is not None else None
    entries = f"{id_of(split.offset)} to {id_of(oldest - 1)}"
    named = f"entries {entries}" if lost is None else f"{lost:,} entries, {entries},"
    return f"The stream {split.name}: {named} are gone (trimmed or deleted) and were not read."


def _entry(answer: object) -> MarkedEntry | None:
    if not isinstance(answer, list | tuple):
        return None
    entry_id, fields = answer
    return MarkedEntry(offset_of(_bytes(entry_id)), digest_of([_bytes(each) for each in fields]))


def _number(value: object) -> int:
    return int(str(value))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
