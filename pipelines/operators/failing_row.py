"""Finds the row on which an author's function fails, after it has failed on the batch.

Halves the batch. A batch of 65,536 rows costs 17 calls on at most twice its rows; that happens
once, in an attempt that is over anyway.
"""

from collections.abc import Callable

import pyarrow as pa


def first_failing_row(function: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> int:
    """A row that fails by itself; -1: no row does, so the failure is not that of one row."""
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
    except Exception:  # an author's function may raise anything
        return True
    return False
