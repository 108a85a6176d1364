"""Moves values into and out of the columns of a state: as Arrow, numpy arrays or Python values.

Times become their underlying integers, in the unit of their type: tables read and write those.
A struct has one column per field. Python values are copied on their way in and out, so that only a
put changes the state: otherwise a function could keep a value and change it in place. The function
would see the change and the snapshot might not, depending on where a batch ends. Values of most
types are immutable and are handed out as they are.
"""

import copy
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.backend import Default, Rows, Table
from pipelines.state.hashing import as_integers, is_bytes_like, is_integer_like


def storage_dtype(column_type: pa.DataType) -> np.dtype[np.generic]:
    types = pa.types
    if types.is_boolean(column_type):
        return np.dtype(np.bool_)
    if types.is_integer(column_type) or types.is_floating(column_type):
        dtype: np.dtype[np.generic] = np.dtype(column_type.to_pandas_dtype())
        return dtype
    return np.dtype(np.int64 if column_type.bit_width == 64 else np.int32)


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with plain columns in place of dictionary-encoded ones."""
    if not any(pa.types.is_dictionary(column_type) for column_type in batch.schema.types):
        return batch
    arrays = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def as_numbers(array: pa.Array) -> npt.NDArray[np.generic]:
    """Returns the numbers underlying a fixed-width column; a null becomes 0."""
    if not pa.types.is_floating(array.type):
        return as_integers(array)
    filled = array.fill_null(0.0) if array.null_count else array
    return np.asarray(filled.to_numpy())


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """True where the array holds a value."""
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def to_arrow(
    values: npt.NDArray[np.generic],
    column_type: pa.DataType,
    valid: npt.NDArray[np.generic] | None = None,
) -> pa.Array:
    """Returns `values` as `column_type`, without a copy where numpy and Arrow agree."""
    mask = None if valid is None else ~valid.astype(np.bool_)
    array = pa.array(values, mask=mask)
    return array if array.type == column_type else array.view(column_type)


def check_key_type(state: str, field: pa.Field) -> None:
    if not (is_integer_like(field.type) or is_bytes_like(field.type)):
        raise Rejected(
            f"State '{state}': the key column '{field.name}' has type {field.type}; "
            "a key is an integer, timestamp, date, boolean, string or binary."
        )


def check_value_type(state: str, field: pa.Field) -> None:
    is_known = is_integer_like(field.type) or is_bytes_like(field.type)
    if not (is_known or pa.types.is_floating(field.type)):
        raise Rejected(
            f"State '{state}': the value column '{field.name}' has type {field.type}; a value is "
            "an integer, float, boolean, timestamp, date, string or binary."
        )


def check_default(state: str, field: pa.Field, default: Default) -> None:
    try:
        pa.scalar(default, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Rejected(
            f"State '{state}': {default!r} cannot be the default of '{field.name}' ({field.type})."
        ) from error


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """The columns that store one value; `schema` lists them in order."""

    state: str
    type: pa.DataType
    schema: pa.Schema

    @classmethod
    def of(cls, state: str, type_: pa.DataType) -> "ValueLayout":
        if not pa.types.is_struct(type_):
            return cls(state, type_, pa.schema([(state, type_)]))
        if not type_.num_fields:
            raise Rejected(f"State '{state}': a struct without fields holds nothing.")
        return cls(state, type_, pa.schema(list(type_)))

    def read(self, table: Table, rows: Rows) -> pa.Array:
        columns = [table.read_arrow(name, rows) for name in self.schema.names]
        if not pa.types.is_struct(self.type):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))

    def write(self, table: Table, rows: Rows, values: pa.Array) -> None:
        for name, column in zip(self.schema.names, self.columns(values), strict=True):
            table.write_arrow(name, rows, column)

    def columns(self, values: pa.Array) -> list[pa.Array]:
        """Raises Rejected if the values do not have the declared type."""
        if values.type != self.type:
            raise Rejected(
                f"The state {self.state!r} holds {self.type}; it was given {values.type}."
            )
        if not pa.types.is_struct(self.type):
            return [values]
        if values.null_count:
            raise Rejected(f"The state {self.state!r} was given a null; its fields may be null.")
        columns: list[pa.Array] = values.flatten()
        return columns


_NEVER_CHANGES = frozenset(
    (bool, int, float, str, bytes, type(None), date, datetime, time, timedelta, Decimal)
)


def copy_of(value: Any) -> Any:
    """Returns a copy that shares nothing mutable with `value`."""
    kind = type(value)
    if kind in _NEVER_CHANGES:
        return value
    if kind is list:
        return [copy_of(each) for each in value]
    if kind is dict:
        return {key: copy_of(each) for key, each in value.items()}
    if kind is tuple:
        return tuple([copy_of(each) for each in value])
    return copy.deepcopy(value)


def may_change(declared: pa.DataType) -> bool:
    """True if values of that type have to be copied on their way in and out."""
    return (
        pa.types.is_nested(declared)
        or pa.types.is_binary(declared)  # a bytearray is accepted as one
        or pa.types.is_large_binary(declared)
        or pa.types.is_fixed_size_binary(declared)
        or isinstance(declared, pa.BaseExtensionType)
    )
