"""Copies Python values on their way into and out of a state, so that only a put changes the state.

Otherwise a function could keep a value and change it in place. The function would see the change
and the snapshot might not, depending on where a batch ends. Values of most types are immutable and
are handed out as they are.
"""

import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_NEVER_CHANGES = frozenset(
    (bool, int, float, str, bytes, type(None), date, datetime, time, timedelta, Decimal)
)


def copy_of(value: Any) -> Any:
    """A copy that shares nothing changeable with `value`."""
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
