"""Finds partners among the due rows of two sides, each in a window.

Two rows are partners if their keys are equal, without nulls, and they are in the same window.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, longs, single_batch

_WINDOW = "__window"
_ROW = "__row_of_"


@dataclass(frozen=True, slots=True)
class DueRows:
    """Rows with the window of each. Its start distinguishes a window from others of the key."""

    rows: pa.RecordBatch
    starts: Longs
    ends: Longs

    def take(self, positions: Longs) -> "DueRows":
        return DueRows(
            self.rows.take(pa.array(positions)), self.starts[positions], self.ends[positions]
        )


def pairs_of(left: DueRows, right: DueRows, on: tuple[str, ...]) -> tuple[Longs, Longs]:
    """Positions of all partners, in order of the left row, then of the right one.

    Only keys and positions go through the join, so columns of any type may ride along.
    """
    if left.rows.num_rows == 0 or right.rows.num_rows == 0:
        return _NO_ROWS, _NO_ROWS
    left_keys, right_keys = _keys_of(left, on, "left"), _keys_of(right, on, "right")
    pairs = left_keys.join(right_keys, [*on, _WINDOW], join_type="inner", use_threads=False)
    left_rows = longs(single_batch(pairs).column(_ROW + "left"))
    right_rows = longs(single_batch(pairs).column(_ROW + "right"))
    order = np.lexsort((right_rows, left_rows))
    return left_rows[order], right_rows[order]


def others(positions: Longs, count: int) -> Longs:
    """The positions below `count` that are not among these."""
    is_other = np.ones(count, np.bool_)
    is_other[positions] = False
    return np.flatnonzero(is_other)


def _keys_of(due: DueRows, on: tuple[str, ...], side: str) -> pa.Table:
    keys = pa.Table.from_batches([due.rows.select(list(on))])
    numbered = keys.append_column(_ROW + side, pa.array(np.arange(due.rows.num_rows)))
    return numbered.append_column(_WINDOW, pa.array(due.starts))


_NO_ROWS: Longs = np.empty(0, np.int64)
