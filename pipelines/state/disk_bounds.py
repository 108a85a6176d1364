"""Decides without reading the disk whether rows that are only there may be due.

Keeps one bound per integer key column; a bound may be too low, never too high.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.state.hashing import as_integers, is_integer_like

_LARGEST = int(np.iinfo(np.int64).max)
_SMALLEST = int(np.iinfo(np.int64).min)


@dataclass(slots=True)
class Search:
    """A search for rows on disk whose key column is <= `bound`."""

    key_column: str
    bound: int
    later: int = _LARGEST  # the smallest number above the bound that the search met

    def due_among(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        numbers = as_integers(keys.column(self.key_column))
        valid = keys.column(self.key_column).is_valid().to_numpy(zero_copy_only=False)
        due = valid & (numbers <= self.bound)
        self.later = min(self.later, int(numbers.min(where=valid & ~due, initial=_LARGEST)))
        return keys.filter(pa.array(due))


class DiskBounds:
    def __init__(self, key: pa.Schema) -> None:
        # By key column: no row that is only on disk has a smaller number.
        self._least = {f.name: _LARGEST for f in key if is_integer_like(f.type)}

    def may_hold(self, key_column: str, bound: int) -> bool:
        """True if a row whose key column is <= `bound` may be only on disk."""
        return self._least[key_column] <= bound

    def on_evicted(self, keys: pa.RecordBatch) -> None:
        """From now on the rows of these keys are only on disk."""
        for name in self._least:
            numbers = as_integers(keys.column(name).drop_null())
            self._least[name] = min(self._least[name], int(numbers.min(initial=_LARGEST)))

    def on_unknown(self) -> None:
        """Nothing is known of the rows on disk."""
        self._least = dict.fromkeys(self._least, _SMALLEST)

    def on_searched(self, search: Search) -> None:
        """The search has met every row on disk; the due ones are in memory now."""
        self._least[search.key_column] = search.later
