"""Finds the rows that are in one table and not in another, exactly, a column at a time.

Rows become numbers that are equal where the rows are, so nothing is hashed and nothing can collide.
Null equals null, and NaN equals NaN. Both tables are in memory; the caller bounds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]

NULL = -1
"""Values have numbers from 0 on."""


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Row numbers: of the right table, the left one, and both. `changed` None: there is no key."""

    added: Numbers
    removed: Numbers
    changed: tuple[Numbers, Numbers] | None


def by_key(
    left: pa.Table, right: pa.Table, key: Sequence[str], columns: Sequence[str]
) -> RowDifferences | None:
    """None: the key is not unique."""
    left_keys, right_keys = _numbered(left, right, key)
    if _repeats(left_keys) or _repeats(right_keys):
        return None
    _, in_left, in_right = np.intersect1d(
        left_keys, right_keys, assume_unique=True, return_indices=True
    )
    left_rows, right_rows = _numbered(left, right, columns)
    differs = left_rows[in_left] != right_rows[in_right]
    return RowDifferences(
        added=np.flatnonzero(~np.isin(right_keys, left_keys)),
        removed=np.flatnonzero(~np.isin(left_keys, right_keys)),
        changed=(in_left[differs], in_right[differs]),
    )


def by_row(left: pa.Table, right: pa.Table, columns: Sequence[str]) -> RowDifferences:
    """A row that was there once and is there twice counts as one new row."""
    left_rows, right_rows = _numbered(left, right, columns)
    return RowDifferences(
        added=_surplus(right_rows, left_rows), removed=_surplus(left_rows, right_rows), changed=None
    )


def _surplus(these: Numbers, those: Numbers) -> Numbers:
    """For each row that `these` have more often than `those`: the surplus ones, from the last."""
    size = int(max(these.max(initial=-1), those.max(initial=-1))) + 1
    there = np.bincount(those, minlength=size)
    order = np.argsort(these, kind="stable")
    ordered = these[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.arange(len(these)) - first  # among equal rows
    return np.sort(order[rank >= there[ordered]])


def _numbered(left: pa.Table, right: pa.Table, columns: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Numbers that are equal where rows are equal in these columns, and below the row count."""
    numbers = np.zeros(left.num_rows + right.num_rows, np.int64)
    for name in columns:
        codes = _codes(left.column(name), right.column(name))
        together = numbers * (codes.max(initial=0) + 1) + codes
        numbers = np.unique(together, return_inverse=True)[1].astype(np.int64)
    return numbers[: left.num_rows], numbers[left.num_rows :]


def _codes(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Numbers:
    """A number per value, the same for equal ones."""
    if left.type != right.type:
        left = left.cast(right.type)
    both = pa.chunked_array([*left.chunks, *right.chunks], right.type).combine_chunks()
    try:
        encoded = both.dictionary_encode()
    except pa.ArrowNotImplementedError:  # nested values
        encoded = pa.array([repr(value) for value in both.to_pylist()]).dictionary_encode()
    codes: Numbers = encoded.indices.fill_null(NULL).to_numpy().astype(np.int64)
    return codes - NULL


def _repeats(numbers: Numbers) -> bool:
    return len(np.unique(numbers)) < len(numbers)
