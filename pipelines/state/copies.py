"""Copies of Python values that states hand out and take in, so that only a put changes a state.

A value that a function keeps and changes in place would otherwise change the state for some readers
and not for others: the function sees it, the snapshot may not, and where a batch ends decides.
Values of most types never change and are handed out as they are.
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
    """Nothing that is changed in one of them is changed in the other."""
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
    """Whether a value of that type has to be copied where it goes in or out."""
    return (
        pa.types.is_nested(declared)
        or pa.types.is_binary(declared)  # a bytearray is taken for one
        or pa.types.is_large_binary(declared)
        or pa.types.is_fixed_size_binary(declared)
        or isinstance(declared, pa.BaseExtensionType)
    )
