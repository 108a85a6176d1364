"""Whether rows that lie on disk only may be due, without looking there.

Knows one bound per integer key column; a bound may be too low, never too high.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.state.hashing import as_integers, is_integer_like

_LARGEST = int(np.iinfo(np.int64).max)
_SMALLEST = int(np.iinfo(np.int64).min)


@dataclass(slots=True)
class Search:
    """For the rows whose key column is <= `bound`, among all that are on disk."""

    key_column: str
    bound: int
    later: int = _LARGEST  # the least number above the bound that was met

    def due_among(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        numbers = as_integers(keys.column(self.key_column))
        valid = keys.column(self.key_column).is_valid().to_numpy(zero_copy_only=False)
        due = valid & (numbers <= self.bound)
        self.later = min(self.later, int(numbers.min(where=valid & ~due, initial=_LARGEST)))
        return keys.filter(pa.array(due))


class DiskBounds:
    def __init__(self, key: pa.Schema) -> None:
        # No number of a row that is on disk only is below it, by key column.
        self._least = {f.name: _LARGEST for f in key if is_integer_like(f.type)}

    def may_hold(self, key_column: str, bound: int) -> bool:
        """Whether a row whose key column is <= `bound` may be on disk only."""
        return self._least[key_column] <= bound

    def on_evicted(self, keys: pa.RecordBatch) -> None:
        """Rows of these keys are on disk only from now on."""
        for name in self._least:
            numbers = as_integers(keys.column(name).drop_null())
            self._least[name] = min(self._least[name], int(numbers.min(initial=_LARGEST)))

    def on_unknown(self) -> None:
        """Nothing is known of the rows on disk."""
        self._least = dict.fromkeys(self._least, _SMALLEST)

    def on_searched(self, search: Search) -> None:
        """It has met every row, and those that were due are in memory now."""
        self._least[search.key_column] = search.later
