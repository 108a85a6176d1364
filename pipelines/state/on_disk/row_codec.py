"""Rows of Arrow columns as byte strings and back, a whole batch at a time.

A row is a fixed part, then its texts one after the other. The fixed part holds an optional key
group (big-endian, so that rows sort by it), one validity bit per column, the fixed-width values and
the lengths of the texts. Equal rows have equal bytes and different rows different ones, so the
encoding of a key can replace the key; the value of a null is written as zero.

The format is stored in snapshots: it can never change.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.state.arrow_types import storage_dtype, to_arrow
from pipelines.state.hashing import is_bytes_like

Records = npt.NDArray[np.void]
Packed = Any
"""Encoded rows: numpy `Records` of bytes if fixed-width, else Arrow binaries, which are untyped
anyway."""

KeyGroups = npt.NDArray[np.uint16]
Structured = npt.NDArray[Any]

_VALID = "valid"
_GROUP = "group"


class RowCodec:
    """The encoding of one schema; `with_group` puts the key group in front of every row."""

    def __init__(self, schema: pa.Schema, *, with_group: bool) -> None:
        self.schema = schema
        self._texts = [i for i, field in enumerate(schema) if is_bytes_like(field.type)]
        self._valid_bytes = max(1, -(-len(schema) // 8))
        fields: list[tuple[Any, ...]] = [(_GROUP, ">u2")] if with_group else []
        fields.append((_VALID, "u1", (self._valid_bytes,)))
        for index, field in enumerate(schema):
            width = "<u4" if index in self._texts else storage_dtype(field.type).newbyteorder("<")
            fields.append((str(index), width))
        self._fixed = np.dtype(fields)

    def encode(
        self, columns: Sequence[pa.Array], count: int, groups: KeyGroups | None = None
    ) -> Packed:
        """`count` rows; `columns` have the types of the schema, in its order."""
        rows: Structured = np.zeros(count, self._fixed)
        if groups is not None:
            rows[_GROUP] = groups
        bits = np.zeros((count, len(self.schema)), np.bool_)
        for index, column in enumerate(columns):
            bits[:, index] = column.is_valid().to_numpy(zero_copy_only=False)
            rows[str(index)] = _lengths(column) if index in self._texts else _numbers(column)
        if columns:
            rows[_VALID] = np.packbits(bits, axis=1, bitorder="little")
        records: Records = rows.view(f"V{self._fixed.itemsize}")
        if not self._texts:
            return records
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(self._fixed.itemsize), count, [None, pa.py_buffer(records)]
        )
        parts = [_bytes_of(columns[index]) for index in self._texts]
        nothing = pa.scalar(b"", pa.large_binary())  # joins two parts
        return pc.binary_join_element_wise(fixed.cast(pa.large_binary()), *parts, nothing)

    def decode(self, rows: list[bytes]) -> tuple[pa.RecordBatch, KeyGroups | None]:
        """The rows, and their key groups where the codec holds them."""
        content = np.frombuffer(b"".join(rows), np.uint8)
        if self._texts:
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            starts = np.cumsum(lengths) - lengths
            places = starts[:, None] + np.arange(self._fixed.itemsize)
            fixed = np.ascontiguousarray(content[places]).view(self._fixed).ravel()
        else:
            starts = np.empty(0, np.int64)
            fixed = content.view(self._fixed)
        columns = self._columns(fixed, content, starts + self._fixed.itemsize)
        groups = None
        if _GROUP in (self._fixed.names or ()):
            groups = fixed[_GROUP].astype(np.uint16)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), groups

    def _columns(
        self, fixed: Structured, content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> list[pa.Array]:
        bits = np.unpackbits(fixed[_VALID], axis=1, bitorder="little").astype(np.bool_)
        columns = []
        for index, field in enumerate(self.schema):
            valid = bits[:, index]
            stored = fixed[str(index)]
            if index in self._texts:
                lengths = stored.astype(np.int64)
                columns.append(_texts(content, starts, lengths, valid, field.type))
                starts = starts + lengths
            else:
                native = stored.astype(stored.dtype.newbyteorder("="))
                columns.append(to_arrow(native, field.type, None if valid.all() else valid))
        return columns


def sort_order(packed: Packed) -> npt.NDArray[np.int64]:
    """Positions in the order of the bytes, which is the order of RocksDB."""
    if not isinstance(packed, np.ndarray):
        return np.asarray(pc.sort_indices(packed)).astype(np.int64)
    width = packed.dtype.itemsize
    words = -(-width // 8)
    padded = np.zeros((len(packed), words * 8), np.uint8)
    padded[:, :width] = np.ascontiguousarray(packed).view(np.uint8).reshape(len(packed), width)
    numbers = padded.view(">u8").astype(np.uint64)
    return np.lexsort([numbers[:, word] for word in reversed(range(words))])


def take(packed: Packed, positions: npt.NDArray[np.int64]) -> Packed:
    if isinstance(packed, np.ndarray):
        return packed.take(positions)
    return packed.take(pa.array(positions))


def bytes_list(packed: Packed) -> list[bytes]:
    listed: list[bytes] = packed.tolist() if isinstance(packed, np.ndarray) else packed.to_pylist()
    return listed


def _numbers(column: pa.Array) -> npt.NDArray[np.generic]:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _bytes_of(column: pa.Array) -> pa.Array:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    wide = column.cast(pa.large_string()).view(pa.large_binary()) if is_text else column
    return wide.cast(pa.large_binary()).fill_null(b"")


def _lengths(column: pa.Array) -> npt.NDArray[np.generic]:
    return np.asarray(pc.binary_length(_bytes_of(column)).to_numpy(zero_copy_only=False))


def _texts(
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_],
    column_type: pa.DataType,
) -> pa.Array:
    """Values that are scattered in `content`, as one array."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    mask = None
    if not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type)
    wide = pa.large_string() if is_text else pa.large_binary()
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(content[places])]
    return pa.Array.from_buffers(wide, len(lengths), buffers).cast(column_type)
