"""Columns that can be frozen without a copy: fixed-width values, and append-only texts.

A frozen column of fixed width starts out sharing the live array, which is divided into segments.
Before the owner first overwrites a segment that a reader still needs, it saves the segment as it
was (the pre-image). The reader takes the pre-image if there is one, and otherwise copies the live
segment. A lock makes the check and the copy one step.

Strings or binaries are appended to a heap of chunks, so that neither growth nor compaction ever
moves more than one chunk. The upper 32 bits of a position are the number of its chunk. Appended
values never change, so a frozen chunk is two arrays and a length, and later appends write after it.
Nulls are not stored; their position is NULL_POSITION.

Only the subtask's thread writes; any other thread may read the frozen columns.
"""

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import check

Values = npt.NDArray[Any]
"""One value per row, with the element type of the column."""
Rows = npt.NDArray[np.int64]

SEGMENT_BITS = 16
SEGMENT_ROWS = 1 << SEGMENT_BITS
INITIAL_ROWS = 1 << 10


class FrozenColumn:
    """A column as it was at the cut. Each segment may be taken once, by any one thread."""

    def __init__(self, values: Values, length: int, lock: threading.Lock) -> None:
        self._values = values
        self._length = length
        self._lock = lock
        self._preimages: dict[int, Values] = {}
        self.shared = np.ones(segment_count(length), np.bool_)  # True: only the live array has it

    def take(self, segment: int) -> Values:
        """The rows of one segment, as they were; the caller owns them."""
        first = segment << SEGMENT_BITS
        with self._lock:
            check(
                bool(self.shared[segment]) or segment in self._preimages, "a segment is taken once"
            )
            if not self.shared[segment]:
                return self._preimages.pop(segment)
            values = self._values[first : min(first + SEGMENT_ROWS, self._length)].copy()
            # Only now: the owner checks `shared` without the lock, and then writes.
            self.shared[segment] = False
            return values

    def keep(self, segment: int, preimage: Values) -> None:
        """Keeps a segment that the owner is about to overwrite. The caller has the lock."""
        check(bool(self.shared[segment]), "a segment is kept once", segment=segment)
        self.shared[segment] = False
        self._preimages[segment] = preimage[: self._length - (segment << SEGMENT_BITS)]


class Column:
    """Values by row number. `lock` may be shared by the columns of one table."""

    def __init__(
        self, dtype: npt.DTypeLike, fill: int | float | bool, lock: threading.Lock
    ) -> None:
        self._fill = fill
        self._lock = lock
        self._values: Values = np.empty(0, dtype)
        self._filled = 0
        self._frozen: list[weakref.ref[FrozenColumn]] = []

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    @property
    def values(self) -> Values:
        """The live array. Read only; rows beyond those in use have arbitrary values."""
        return self._values

    @property
    def reader_count(self) -> int:
        """The number of frozen columns that still share a segment with this one."""
        return len(list(self._readers()))

    def read(self, rows: Rows) -> Values:
        return self._values.take(rows)

    def write(self, rows: Rows, values: Values | int | float | bool) -> None:
        if self._frozen:
            self._save_preimages(rows)
        self._values[rows] = values

    def reset(self, rows: Rows) -> None:
        self.write(rows, self._fill)

    def reserve(self, length: int) -> None:
        """Makes room for rows below `length`."""
        if length > len(self._values):
            # Allocated memory that is not touched yet costs no time.
            larger = np.empty(max(length, 2 * len(self._values), INITIAL_ROWS), self.dtype)
            larger[: self._filled] = self._values[: self._filled]
            self._values = larger
            # Frozen columns keep the old array, and from now on nothing writes to it.
            self._frozen = []
        if length > self._filled:
            self._values[self._filled : length] = self._fill
            self._filled = length

    def freeze(self, length: int) -> FrozenColumn:
        """Freezes the first `length` rows as they are now; the time does not depend on `length`."""
        frozen = FrozenColumn(self._values, length, self._lock)
        self._frozen = [each for each in self._frozen if each() is not None]
        self._frozen.append(weakref.ref(frozen))
        return frozen

    def _save_preimages(self, rows: Rows) -> None:
        """Saves the segments of `rows` for the frozen columns that still share them."""
        readers = list(self._readers())
        self._frozen = [weakref.ref(each) for each in readers]
        if not readers:
            return
        touched = np.zeros(segment_count(len(self._values)), np.bool_)
        touched[rows >> SEGMENT_BITS] = True
        for segment in np.flatnonzero(touched).tolist():
            self._save_preimage(segment, readers)

    def _readers(self) -> Iterator[FrozenColumn]:
        """The frozen columns that are still in use and still share a segment."""
        for reference in self._frozen:
            frozen = reference()
            if frozen is not None and frozen.shared.any():
                yield frozen

    def _save_preimage(self, segment: int, readers: list[FrozenColumn]) -> None:
        with self._lock:
            sharing = [r for r in readers if segment < len(r.shared) and r.shared[segment]]
            if not sharing:
                return
            first = segment << SEGMENT_BITS
            # One copy serves all readers: the segment has not changed since the oldest cut.
            preimage = self._values[first : first + SEGMENT_ROWS].copy()
            for reader in sharing:
                reader.keep(segment, preimage)


def segment_count(length: int) -> int:
    return -(-length // SEGMENT_ROWS)


def first_row(segment: int) -> int:
    return segment << SEGMENT_BITS


def segment_of(flags: npt.NDArray[np.bool_], segment: int, length: int) -> npt.NDArray[np.bool_]:
    """Returns the flags of one segment's rows below `length`; False where `flags` is too short."""
    first = segment << SEGMENT_BITS
    part = flags[first : min(first + SEGMENT_ROWS, length)]
    padded = np.zeros(min(SEGMENT_ROWS, length - first), np.bool_)
    padded[: len(part)] = part
    return padded


Positions = npt.NDArray[np.int64]

NULL_POSITION = -1

ChunkNumbers = npt.NDArray[np.int32]
"""The chunk of each position; that of a null is -1."""


def chunks_of(positions: Positions) -> ChunkNumbers:
    return (positions >> CHUNK_BITS).astype(np.int32)


CHUNK_BYTES = 32 << 20
CHUNK_BITS = 32
PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FrozenHeap:
    """The heap as it was; safe to use from any thread."""

    chunks: dict[int, "FrozenChunk"]
    type: pa.DataType

    def take(self, positions: Positions) -> pa.Array:
        """The values at `positions`, as an array of the declared type."""
        numbers = chunks_of(positions)
        first = int(numbers.max(initial=NULL_POSITION))
        if first == NULL_POSITION:
            return pa.nulls(len(positions), self.type)
        if not ((numbers == first) | (numbers == NULL_POSITION)).all():
            return self._gathered(positions, numbers)
        return self.chunks[first].take(positions).cast(self.type)

    def take_parts(self, positions: Positions) -> pa.ChunkedArray:
        """Like `take`, but in arrays of about PART_BYTES.

        A segment of large values may have more bytes than one array can hold, and more than should
        be in memory twice.
        """
        ends = np.cumsum(self._lengths(positions))
        bounds = np.flatnonzero(np.diff(ends // PART_BYTES)) + 1
        parts = [self.take(part) for part in np.split(positions, bounds)]
        return pa.chunked_array(parts, self.type)

    def _lengths(self, positions: Positions) -> npt.NDArray[np.int64]:
        numbers, lengths = chunks_of(positions), np.zeros(len(positions), np.int64)
        for number in np.unique(numbers[numbers != NULL_POSITION]).tolist():
            at = numbers == number
            lengths[at] = self.chunks[number].lengths(positions[at])
        return lengths

    def _gathered(self, positions: Positions, numbers: ChunkNumbers) -> pa.Array:
        """Takes values that are in several chunks, chunk by chunk, and restores their order."""
        order = np.argsort(numbers, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(numbers[order])) + 1, len(order))
        parts, begin = [], 0
        for end in ends.tolist():
            places = order[begin:end]
            number = int(numbers[places[0]])
            if number == NULL_POSITION:
                parts.append(pa.nulls(len(places), _wide(self.type)))
            else:
                parts.append(self.chunks[number].take(positions[places]))
            begin = end
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(pa.array(back)).cast(self.type)


@dataclass(frozen=True, slots=True)
class FrozenChunk:
    """The first `length` values of a chunk; value i lies between offsets i and i + 1."""

    offsets: npt.NDArray[np.int64]
    content: npt.NDArray[np.uint8]
    length: int
    type: pa.DataType  # with 64-bit offsets

    @property
    def size_bytes(self) -> int:
        return int(self.offsets[self.length]) + 8 * self.length

    def lengths(self, positions: Positions) -> npt.NDArray[np.int64]:
        places = positions & ((1 << CHUNK_BITS) - 1)
        return np.asarray(self.offsets[places + 1] - self.offsets[places])

    def take(self, positions: Positions) -> pa.Array:
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.content)]
        values = pa.Array.from_buffers(self.type, self.length, buffers, 0)
        is_null = positions == NULL_POSITION
        return values.take(pa.array(positions & ((1 << CHUNK_BITS) - 1), mask=is_null))


class TextHeap:
    def __init__(self, column_type: pa.DataType) -> None:
        self._type = column_type
        self._wide = _wide(column_type)
        self._full: dict[int, FrozenChunk] = {}
        self._newest = TextChunk()
        self._number = 0  # of the newest chunk

    def __len__(self) -> int:
        return self._newest.length + sum(chunk.length for chunk in self._full.values())

    @property
    def size_bytes(self) -> int:
        return self._newest.size_bytes + sum(chunk.size_bytes for chunk in self._full.values())

    def append(self, array: pa.Array) -> Positions:
        """Appends the values of `array`; returns their positions, in order."""
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        positions = np.full(len(array), NULL_POSITION, np.int64)
        wide = array.drop_null().cast(self._wide)
        if self._newest.size_bytes + wide.nbytes > CHUNK_BYTES:
            self._begin_chunk()
        first = (self._number << CHUNK_BITS) + self._newest.length
        positions[valid] = first + np.arange(len(wide))
        self._newest.append(wide)
        return positions

    def freeze(self) -> FrozenHeap:
        return FrozenHeap({**self._full, self._number: self._newest.freeze(self._wide)}, self._type)

    def take(self, positions: Positions) -> pa.Array:
        return self.freeze().take(positions)

    def wasteful(self, numbers: ChunkNumbers) -> list[int]:
        """Returns the chunks with at most half of their values in use, the emptiest first.

        No value is appended to them any more. `numbers` has the chunk of each value in use.
        """
        self._begin_chunk()
        used = np.bincount(numbers[numbers >= 0], minlength=self._number + 1)
        shares = {number: used[number] / chunk.length for number, chunk in self._full.items()}
        return sorted((n for n, share in shares.items() if share <= 0.5), key=shares.__getitem__)

    def drop(self, number: int) -> None:
        """Drops a chunk; frozen heaps keep it."""
        del self._full[number]

    def _begin_chunk(self) -> None:
        if not self._newest.length:
            return
        self._full[self._number] = self._newest.freeze(self._wide)
        self._number += 1
        self._newest = TextChunk()


class TextChunk:
    """One array of values and one of offsets, which grow."""

    def __init__(self) -> None:
        self._offsets = np.zeros(1024, np.int64)
        self._content = np.empty(8192, np.uint8)
        self.length = 0

    @property
    def size_bytes(self) -> int:
        return int(self._offsets[self.length]) + 8 * self.length

    def append(self, wide: pa.Array) -> None:
        """Appends values, none of which may be null."""
        if not len(wide):
            return
        _, offsets_buffer, content_buffer = wide.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int64)[wide.offset :][: len(wide) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        start = int(self._offsets[self.length])
        self._reserve(self.length + len(wide) + 1, start + last - first)
        if last > first:
            content = np.frombuffer(content_buffer, np.uint8)[first:last]
            self._content[start : start + last - first] = content
        # Offsets come last, and only beyond the length that a frozen chunk may read.
        end = self.length + len(wide)
        self._offsets[self.length + 1 : end + 1] = offsets[1:] - first + start
        self.length = end

    def freeze(self, wide: pa.DataType) -> FrozenChunk:
        return FrozenChunk(self._offsets, self._content, self.length, wide)

    def _reserve(self, offset_count: int, byte_count: int) -> None:
        if offset_count > len(self._offsets):
            offsets = np.zeros(max(offset_count, 2 * len(self._offsets)), np.int64)
            offsets[: self.length + 1] = self._offsets[: self.length + 1]
            self._offsets = offsets
        if byte_count > len(self._content):
            used = int(self._offsets[self.length])
            content = np.empty(max(byte_count, 2 * len(self._content)), np.uint8)
            content[:used] = self._content[:used]
            self._content = content


def equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Compares row by row; null equals null."""
    if not left.null_count and not right.null_count:
        return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False))
    same = pc.equal(left, right).fill_null(False)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(same, both_null).to_numpy(zero_copy_only=False))


def _wide(column_type: pa.DataType) -> pa.DataType:
    """Returns the type with 64-bit offsets."""
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type)
    return pa.large_string() if is_text else pa.large_binary()
