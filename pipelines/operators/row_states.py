"""States as a row function sees them: of the current key, in Python values.

What a batch touches is read once, for all of its keys, when it is first asked for, and written
once, when the batch ends; in between it lies in dictionaries. So a row function pays for Python,
not for a lookup per row. The names are those of Flink's state interfaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.rows import to_array
from pipelines.state.value_state import ValueState


@dataclass(slots=True)
class CurrentKeys:
    """The distinct keys of the batch in work, and which of them the current row has."""

    keys: pa.RecordBatch | None = None
    index: int = 0

    def take(self, indices: Iterable[int]) -> pa.RecordBatch:
        chosen = pa.array(list(indices), pa.int64())
        return self.all.take(chosen)

    @property
    def all(self) -> pa.RecordBatch:
        if self.keys is None:
            raise Rejected(
                "A keyed state was used without a key: it has one while a record or a timer of its"
                " stream is processed, not when the function opens or broadcast records come."
            )
        return self.keys


class RowState(ABC):
    """Something that lives in dictionaries while a batch is processed."""

    @abstractmethod
    def flush(self) -> None:
        """Write back what the batch has changed, and forget it."""


@dataclass(slots=True)
class RowValueState(RowState):
    """Source: Flink's `ValueState`."""

    name: str
    current: CurrentKeys
    state: ValueState
    _loaded: list[Any] | None = None
    _read: set[int] = field(default_factory=set)
    _written: dict[int, Any] = field(default_factory=dict)

    def value(self) -> Any:
        """None where there is none."""
        index = self.current.index
        if index in self._written:
            return self._written[index]
        if self._loaded is None:
            self._loaded = self.state.peek(self.current.all).to_pylist()
        self._read.add(index)
        return self._loaded[index]

    def update(self, value: Any) -> None:
        """None clears."""
        self._written[self.current.index] = value

    def clear(self) -> None:
        self._written[self.current.index] = None

    def flush(self) -> None:
        if self._read and self.state.renews_on_read:
            self.state.renew_read(self.current.take(self._read))
        if self._written:
            values = to_array(list(self._written.values()), self.state.type, named(self.name))
            self.state.update(self.current.take(self._written), values)
        self._loaded, self._read, self._written = None, set(), {}


def named(state: str) -> str:
    """How the refusal of a value begins."""
    return f"The state {state!r}"
