"""Finds the row that a function of a batch fails on, after it has failed on the batch.

Halves the batch, so a batch of 65,536 rows costs 17 calls on at most twice its rows, once, in an
attempt that is over anyway.
"""

from collections.abc import Callable

import pyarrow as pa


def first_failing_row(function: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> int:
    """A row that fails by itself; -1: none does, so the failure is not one row's."""
    low, high = 0, batch.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if _fails(function, batch.slice(low, middle - low)):
            high = middle
        else:
            low = middle
    return low if _fails(function, batch.slice(low, 1)) else -1


def _fails(function: Callable[[pa.RecordBatch], object], rows: pa.RecordBatch) -> bool:
    try:
        function(rows)
    except Exception:  # whatever an author's function raises
        return True
    return False
