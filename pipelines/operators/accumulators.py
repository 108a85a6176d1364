"""Accumulators: the fixed-width columns in which an aggregate keeps its intermediate results.

Each combines by one associative operation with an identity. So partial results may be made anywhere
(before an exchange, per batch, per subtask) and merged in any grouping.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.operators.grouping import Groups

if TYPE_CHECKING:
    from collections.abc import Callable

Values = npt.NDArray[Any]
"""One value per row or group: int64, float64, or bool where a sum counts the true ones."""


class Combine(Enum):
    SUM = "sum"
    MAX = "max"
    MIN = "min"


_UFUNC: dict[Combine, np.ufunc] = {
    Combine.SUM: np.add,
    Combine.MAX: np.maximum,
    Combine.MIN: np.minimum,
}


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One column. `type` is int64 or float64."""

    name: str
    type: pa.DataType
    combine: Combine

    @property
    def identity(self) -> int | float:
        """The value of a fresh row: combining with it changes nothing."""
        if self.combine is Combine.SUM:
            return 0 if pa.types.is_integer(self.type) else 0.0
        lowest = self.combine is Combine.MAX
        if pa.types.is_integer(self.type):
            bounds = np.iinfo(np.int64)
            return int(bounds.min if lowest else bounds.max)
        return float("-inf") if lowest else float("inf")

    def reduce(self, values: Values, groups: Groups) -> Values:
        """Combine the rows of each group."""
        if self.combine is Combine.SUM and values.dtype == np.bool_:
            counted = groups.index if values.all() else groups.index[values]
            return np.bincount(counted, minlength=groups.count)
        reduced = np.full(groups.count, self.identity, self._dtype)
        _UFUNC[self.combine].at(reduced, groups.index, values)
        return reduced

    def merge(self, left: Values, right: Values) -> Values:
        combine: Callable[[Values, Values], Values] = _UFUNC[self.combine]
        return combine(left, right)

    def to_arrow(self, values: Values) -> pa.Array:
        return pa.array(values.astype(self._dtype, copy=False), self.type)

    @property
    def _dtype(self) -> type[np.generic]:
        return np.int64 if pa.types.is_integer(self.type) else np.float64
