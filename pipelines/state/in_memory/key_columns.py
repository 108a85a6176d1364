"""The columns of a table: numbers in an array by row, texts in a heap with positions.

All columns can be read and written as Arrow, and frozen with the rest of a table. Key columns can
also be compared with a batch. Value columns have a validity if nulls are allowed. Numbers without
nulls can also be read and written as numpy, which is faster.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import InvariantViolated, check
from pipelines.state.arrow_types import as_numbers, storage_dtype, to_arrow, validity
from pipelines.state.backend import Default
from pipelines.state.hashing import as_integers, is_bytes_like
from pipelines.state.in_memory.columns import (
    NULL_POSITION,
    ChunkNumbers,
    Column,
    FrozenColumn,
    FrozenHeap,
    Rows,
    TextHeap,
    Values,
    chunks_of,
    equal,
)

Mask = npt.NDArray[np.bool_]
LiveMask = Callable[[], Mask]
"""Flags the live rows, by row number; evaluated only when needed."""

# Below this, cleaning up a heap is not worth its cost.
_GARBAGE_MIN = 65_536  # values
_GARBAGE_MIN_BYTES = 16 << 20


class FrozenArrays(Protocol):
    def take(self, segment: int, picked: Rows | slice) -> pa.Array | pa.ChunkedArray:
        """Returns the values of the rows `picked` in one segment, as they were at the cut.

        Large values come in several arrays.
        """
        ...


class KeyColumn(Protocol):
    def reserve(self, length: int) -> None: ...

    def put(self, rows: Rows, array: pa.Array) -> None: ...

    def get(self, rows: Rows) -> pa.Array: ...

    def matches(self, rows: Rows, array: pa.Array) -> Mask:
        """True where the key at a row equals the one in `array`; null equals null."""
        ...

    def identities(self, array: pa.Array) -> list[Hashable]:
        """Returns Python values that are equal exactly where the keys are equal."""
        ...

    def tidy(self, live: LiveMask) -> None:
        """Frees the memory of keys that are no longer live, if it is worth the effort."""
        ...

    def freeze(self, length: int) -> FrozenArrays: ...

    @property
    def heap_bytes(self) -> int: ...


def key_column(column_type: pa.DataType, lock: threading.Lock) -> KeyColumn:
    return (TextKeys if is_bytes_like(column_type) else NumberKeys)(column_type, lock)


class NumberKeys:
    """Integers, booleans and times. Validity is kept only once a null has been seen."""

    def __init__(self, column_type: pa.DataType, lock: threading.Lock) -> None:
        self._type = column_type
        self._lock = lock
        self._numbers = Column(storage_dtype(column_type), 0, lock)
        self._valid: Column | None = None
        self._largest = int(np.iinfo(np.int64).max)
        self._least = self._largest  # no live number is below it

    @property
    def heap_bytes(self) -> int:
        return 0

    def reserve(self, length: int) -> None:
        self._numbers.reserve(length)
        if self._valid is not None:
            self._valid.reserve(length)

    def put(self, rows: Rows, array: pa.Array) -> None:
        numbers = as_integers(array)
        self._numbers.write(rows, numbers)
        self._least = min(self._least, int(numbers.min(initial=self._largest)))
        if array.null_count and self._valid is None:
            self._valid = Column(np.bool_, True, self._lock)
            self._valid.reserve(len(self._numbers.values))
        if self._valid is not None:
            self._valid.write(rows, validity(array))

    def get(self, rows: Rows) -> pa.Array:
        valid = None if self._valid is None else self._valid.read(rows)
        return to_arrow(self._numbers.read(rows), self._type, valid)

    def matches(self, rows: Rows, array: pa.Array) -> Mask:
        same: Mask = self._numbers.read(rows).astype(np.int64) == as_integers(array)
        if self._valid is None and not array.null_count:
            return same
        stored = True if self._valid is None else self._valid.read(rows)
        given = validity(array)
        return np.asarray((stored == given) & (same | ~given))

    def identities(self, array: pa.Array) -> list[Hashable]:
        pairs = zip(as_integers(array).tolist(), validity(array).tolist(), strict=True)
        return [number if valid else None for number, valid in pairs]

    def select_at_most(self, bound: int, live: LiveMask) -> Rows:
        """Returns the live rows with a number <= `bound`, never those with a null."""
        if bound < self._least:
            return np.empty(0, np.int64)
        candidates = live()
        if self._valid is not None:
            candidates = candidates & self._valid.values[: len(candidates)]
        numbers = self._numbers.values[: len(candidates)]
        # Includes the due rows, because the caller need not delete them.
        self._least = int(numbers.min(where=candidates, initial=self._largest))
        return np.flatnonzero(candidates & (numbers <= bound))

    def tidy(self, live: LiveMask) -> None:
        """Nothing to do: deleted numbers take no extra memory."""

    def freeze(self, length: int) -> FrozenArrays:
        valid = None if self._valid is None else self._valid.freeze(length)
        return FrozenNumberKeys(self._type, self._numbers.freeze(length), valid)


@dataclass(frozen=True, slots=True)
class FrozenNumberKeys:
    type: pa.DataType
    numbers: FrozenColumn
    valid: FrozenColumn | None

    def take(self, segment: int, picked: Rows | slice) -> pa.Array:
        valid = None if self.valid is None else self.valid.take(segment)[picked]
        return to_arrow(self.numbers.take(segment)[picked], self.type, valid)


class TextKeys:
    """Strings and binaries."""

    def __init__(self, column_type: pa.DataType, lock: threading.Lock) -> None:
        self._type = column_type
        self._heap = TextHeap(column_type)
        self._positions = Column(np.int64, NULL_POSITION, lock)
        self._tidy_at = _GARBAGE_MIN
        self._tidy_at_bytes = _GARBAGE_MIN_BYTES
        self._moving: _Moving | None = None

    @property
    def heap_bytes(self) -> int:
        return self._heap.size_bytes

    @property
    def reader_count(self) -> int:
        """The number of cuts that still share rows with this column."""
        return self._positions.reader_count

    def reserve(self, length: int) -> None:
        self._positions.reserve(length)

    def put(self, rows: Rows, array: pa.Array) -> None:
        self._positions.write(rows, self._heap.append(array))

    def get(self, rows: Rows) -> pa.Array:
        return self._heap.take(self._positions.read(rows).astype(np.int64, copy=False))

    def matches(self, rows: Rows, array: pa.Array) -> Mask:
        return equal(self.get(rows), array)

    def identities(self, array: pa.Array) -> list[Hashable]:
        return list(array.to_pylist())

    def tidy(self, live: LiveMask) -> None:
        """Moves the live keys out of wasteful chunks once most of the heap is garbage.

        Each call empties one chunk. The rows are searched only once for all chunks together.
        """
        if self._moving is None:
            if len(self._heap) < self._tidy_at and self._heap.size_bytes < self._tidy_at_bytes:
                return
            self._moving = self._begin_moving(np.flatnonzero(live()))
        if self._moving.wasteful:
            self._move_out_of(self._moving.wasteful.pop(0), self._moving)
        if not self._moving.wasteful:
            self._moving = None
            self._tidy_at = _GARBAGE_MIN + 2 * len(self._heap)
            self._tidy_at_bytes = _GARBAGE_MIN_BYTES + 2 * self._heap.size_bytes

    def _begin_moving(self, rows: Rows) -> "_Moving":
        numbers = chunks_of(self._positions.read(rows))
        wasteful = self._heap.wasteful(numbers)
        is_due = np.isin(numbers, wasteful)
        return _Moving(wasteful, rows[is_due], numbers[is_due])

    def _move_out_of(self, number: int, moving: "_Moving") -> None:
        rows = moving.rows[moving.numbers == number]
        rows = rows[chunks_of(self._positions.read(rows)) == number]  # not overwritten since
        texts = self.get(rows)
        # A frozen table keeps the chunk, and the old positions as pre-images.
        self._heap.drop(number)
        self.put(rows, texts)

    def freeze(self, length: int) -> FrozenArrays:
        return FrozenTextKeys(self._heap.freeze(), self._positions.freeze(length))


@dataclass(frozen=True, slots=True)
class _Moving:
    wasteful: list[int]  # chunks that are still to be emptied
    rows: Rows
    numbers: ChunkNumbers  # the chunk of each row


@dataclass(frozen=True, slots=True)
class FrozenTextKeys:
    heap: FrozenHeap
    positions: FrozenColumn

    def take(self, segment: int, picked: Rows | slice) -> pa.ChunkedArray:
        positions = self.positions.take(segment)[picked].astype(np.int64, copy=False)
        return self.heap.take_parts(positions)


_NULLS = "a column holds nulls only if its default is null"


class ValueColumn(Protocol):
    @property
    def row_bytes(self) -> int:
        """Bytes per row, not counting texts."""
        ...

    @property
    def heap_bytes(self) -> int: ...

    @property
    def reader_count(self) -> int: ...

    def reserve(self, length: int) -> None: ...

    def reset(self, rows: Rows) -> None:
        """Sets `rows` back to the default."""
        ...

    def read(self, rows: Rows) -> Values: ...

    def write(self, rows: Rows, values: Values) -> None: ...

    def read_arrow(self, rows: Rows) -> pa.Array: ...

    def write_arrow(self, rows: Rows, values: pa.Array) -> None: ...

    def tidy(self, live: LiveMask) -> None: ...

    def freeze(self, length: int) -> FrozenArrays: ...


def value_column(field: pa.Field, default: Default, lock: threading.Lock) -> ValueColumn:
    if is_bytes_like(field.type):
        return TextValues(field.type, default, lock)
    if default is None:
        return NullableValues(field.type, lock)
    if isinstance(default, str | bytes):
        raise InvariantViolated(f"the number {field.name!r} has a number as its default")
    return NumberValues(field.type, default, lock)


class NumberValues:
    """Fixed-width values without nulls."""

    heap_bytes = 0

    def __init__(
        self, type_: pa.DataType, default: int | float | bool, lock: threading.Lock
    ) -> None:
        self._type = type_
        self._column = Column(storage_dtype(type_), default, lock)

    @property
    def row_bytes(self) -> int:
        return self._column.dtype.itemsize

    @property
    def reader_count(self) -> int:
        return self._column.reader_count

    def reserve(self, length: int) -> None:
        self._column.reserve(length)

    def reset(self, rows: Rows) -> None:
        self._column.reset(rows)

    def read(self, rows: Rows) -> Values:
        return self._column.read(rows)

    def write(self, rows: Rows, values: Values) -> None:
        self._column.write(rows, values)

    def read_arrow(self, rows: Rows) -> pa.Array:
        return to_arrow(self._column.read(rows), self._type)

    def write_arrow(self, rows: Rows, values: pa.Array) -> None:
        check(not values.null_count, _NULLS)
        self._column.write(rows, as_numbers(values))

    def tidy(self, live: LiveMask) -> None:
        """Nothing to do: overwritten numbers take no extra memory."""

    def freeze(self, length: int) -> FrozenArrays:
        return FrozenNumberKeys(self._type, self._column.freeze(length), None)


class NullableValues:
    """Fixed-width values that may be null; a fresh one is null."""

    heap_bytes = 0

    def __init__(self, type_: pa.DataType, lock: threading.Lock) -> None:
        self._type = type_
        self._numbers = Column(storage_dtype(type_), 0, lock)
        self._valid = Column(np.bool_, False, lock)

    @property
    def row_bytes(self) -> int:
        return self._numbers.dtype.itemsize + 1

    @property
    def reader_count(self) -> int:
        return self._numbers.reader_count

    def reserve(self, length: int) -> None:
        self._numbers.reserve(length)
        self._valid.reserve(length)

    def reset(self, rows: Rows) -> None:
        self._valid.reset(rows)

    def read(self, rows: Rows) -> Values:
        raise InvariantViolated("a column that may hold nulls is read as Arrow")

    def write(self, rows: Rows, values: Values) -> None:
        raise InvariantViolated("a column that may hold nulls is written as Arrow")

    def read_arrow(self, rows: Rows) -> pa.Array:
        return to_arrow(self._numbers.read(rows), self._type, self._valid.read(rows))

    def write_arrow(self, rows: Rows, values: pa.Array) -> None:
        self._numbers.write(rows, as_numbers(values))
        self._valid.write(rows, validity(values))

    def tidy(self, live: LiveMask) -> None:
        """Nothing to do: overwritten numbers take no extra memory."""

    def freeze(self, length: int) -> FrozenArrays:
        return FrozenNumberKeys(
            self._type, self._numbers.freeze(length), self._valid.freeze(length)
        )


class TextValues:
    """Strings and binaries; every write leaves the former text behind until `tidy`."""

    row_bytes = 8

    def __init__(self, type_: pa.DataType, default: Default, lock: threading.Lock) -> None:
        self._type = type_
        self._default = default
        self._texts = TextKeys(type_, lock)

    @property
    def heap_bytes(self) -> int:
        return self._texts.heap_bytes

    @property
    def reader_count(self) -> int:
        return self._texts.reader_count

    def reserve(self, length: int) -> None:
        self._texts.reserve(length)

    def reset(self, rows: Rows) -> None:
        self._texts.put(rows, pa.array([self._default] * len(rows), self._type))

    def read(self, rows: Rows) -> Values:
        raise InvariantViolated("a column of texts is read as Arrow")

    def write(self, rows: Rows, values: Values) -> None:
        raise InvariantViolated("a column of texts is written as Arrow")

    def read_arrow(self, rows: Rows) -> pa.Array:
        return self._texts.get(rows)

    def write_arrow(self, rows: Rows, values: pa.Array) -> None:
        may_be_null = self._default is None
        check(may_be_null or not values.null_count, _NULLS)
        self._texts.put(rows, values)

    def tidy(self, live: LiveMask) -> None:
        self._texts.tidy(live)

    def freeze(self, length: int) -> FrozenArrays:
        return self._texts.freeze(length)
