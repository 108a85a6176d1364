"""Append-only strings or binaries by position, in two growing numpy arrays.

Appended values never change, so a frozen heap is the two arrays and a length: later appends write
behind it, and growth and compaction move to new arrays. Nulls are not stored; their position is
NULL_POSITION.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]

NULL_POSITION = -1


@dataclass(frozen=True, slots=True)
class FrozenHeap:
    """The first `length` values of a heap; safe to use from any thread."""

    offsets: npt.NDArray[np.int64]
    content: npt.NDArray[np.uint8]
    length: int
    type: pa.DataType

    def take(self, positions: Positions) -> pa.Array:
        """The values at `positions`, as an array of the declared type."""
        # With no values there is no position to take: all are null, or none are asked for.
        if self.length == 0:
            return pa.nulls(len(positions), self.type)
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.content)]
        wide = pa.Array.from_buffers(_wide(self.type), self.length, buffers, 0)
        wanted = pa.array(positions, mask=positions == NULL_POSITION)
        return wide.take(wanted).cast(self.type)


class TextHeap:
    def __init__(self, column_type: pa.DataType) -> None:
        self._type = column_type
        self._offsets = np.zeros(1024, np.int64)  # value i lies between offsets i and i + 1
        self._content = np.empty(8192, np.uint8)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def size_bytes(self) -> int:
        return int(self._offsets[self._length]) + 8 * self._length

    def expect(self, count: int, text_bytes: int) -> None:
        """Make room for `count` more values."""
        self._reserve(self._length + count + 1, int(self._offsets[self._length]) + text_bytes)

    def append(self, array: pa.Array) -> Positions:
        """Appends the values of `array`; returns their positions, in order."""
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        positions = np.full(len(array), NULL_POSITION, np.int64)
        positions[valid] = self._length + np.arange(int(valid.sum()))
        self._append_valid(array.drop_null().cast(_wide(self._type)))
        return positions

    def freeze(self) -> FrozenHeap:
        return FrozenHeap(self._offsets, self._content, self._length, self._type)

    def take(self, positions: Positions) -> pa.Array:
        return self.freeze().take(positions)

    def _append_valid(self, wide: pa.Array) -> None:
        if not len(wide):
            return
        _, offsets_buffer, content_buffer = wide.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int64)[wide.offset :][: len(wide) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        start = int(self._offsets[self._length])
        self._reserve(self._length + len(wide) + 1, start + last - first)
        if last > first:
            content = np.frombuffer(content_buffer, np.uint8)[first:last]
            self._content[start : start + last - first] = content
        # Offsets come last, and only behind the length that a frozen heap may read.
        end = self._length + len(wide)
        self._offsets[self._length + 1 : end + 1] = offsets[1:] - first + start
        self._length = end

    def _reserve(self, offset_count: int, byte_count: int) -> None:
        if offset_count > len(self._offsets):
            offsets = np.zeros(max(offset_count, 2 * len(self._offsets)), np.int64)
            offsets[: self._length + 1] = self._offsets[: self._length + 1]
            self._offsets = offsets
        if byte_count > len(self._content):
            used = int(self._offsets[self._length])
            content = np.empty(max(byte_count, 2 * len(self._content)), np.uint8)
            content[:used] = self._content[:used]
            self._content = content


def equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Row by row, null equal to null."""
    if not left.null_count and not right.null_count:
        return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False))
    same = pc.equal(left, right).fill_null(False)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(same, both_null).to_numpy(zero_copy_only=False))


def _wide(column_type: pa.DataType) -> pa.DataType:
    """The form with 64-bit offsets."""
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type)
    return pa.large_string() if is_text else pa.large_binary()
