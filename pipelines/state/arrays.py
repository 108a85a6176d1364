"""Between Arrow arrays and the numpy columns of a table.

Fixed-width types are stored as they are (temporal ones as integers); strings and binary as object
columns, one Python object per key and none per record.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.columns import Column, ColumnType


def column_type(field: pa.Field, state: str) -> ColumnType:
    """Raises Rejected for a type that a table cannot hold; names state and column."""
    if pa.types.is_temporal(field.type):
        return np.dtype(np.int64) if field.type.bit_width == 64 else np.dtype(np.int32)
    if pa.types.is_boolean(field.type) or pa.types.is_primitive(field.type):
        primitive: ColumnType = np.dtype(field.type.to_pandas_dtype())
        return primitive
    if is_object(field.type):
        return np.dtype(object)
    raise Rejected(f"The state {state!r} cannot hold the column {field.name!r} of {field.type}.")


def is_object(data_type: pa.DataType) -> bool:
    text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return bool(text or pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def to_column(array: pa.Array) -> Column:
    """The values of an array without nulls."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def to_array(column: Column, field: pa.Field) -> pa.Array:
    if pa.types.is_temporal(field.type):
        width = pa.int64() if field.type.bit_width == 64 else pa.int32()
        return pa.array(column, width).view(field.type)
    return pa.array(column, field.type)
