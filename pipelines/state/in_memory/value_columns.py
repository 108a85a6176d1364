"""How value columns are kept: numbers in an array, with validity if nulls are allowed, or texts.

All can be read and written as Arrow; numbers without nulls also as numpy, which is faster.
"""

import threading
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import InvariantViolated, check
from pipelines.state.arrow_types import as_numbers, storage_dtype, to_arrow, validity
from pipelines.state.backend import Default
from pipelines.state.hashing import is_bytes_like
from pipelines.state.in_memory.columns import Column, Rows, Values
from pipelines.state.in_memory.key_columns import FrozenArrays, FrozenNumberKeys, LiveMask, TextKeys

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
        """Set `rows` back to the default."""
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
    """Fixed-width values, any of which may be null, as a fresh one is."""

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

    def expect(self, count: int, text_bytes: int) -> None:
        self._texts.expect(count, text_bytes)

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
