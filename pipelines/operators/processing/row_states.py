"""The keyed states of a row function: of the current key, in Python values.

These are value, reducing and aggregating state. The state of all keys of a batch is read at first
use, and written when the batch ends; in between it is in dictionaries. So a row function pays for
Python, not for a lookup per row. Lists and structs are copied on their way in and out: changing one
in place changes no state, wherever the batch ends. The names are those of Flink's state interfaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.rows import python_values, to_array
from pipelines.state.arrow_types import copy_of, may_change
from pipelines.state.descriptors import AggregateFunction, Reduce
from pipelines.state.value_state import Accumulators, ValueState


@dataclass(slots=True)
class CurrentKeys:
    """The distinct keys of the current batch, and which of them the current row has."""

    keys: pa.RecordBatch | None = None
    index: int = 0

    def take(self, indices: Iterable[int]) -> pa.RecordBatch:
        keys, chosen = self.all, list(indices)
        if chosen == list(range(keys.num_rows)):
            return keys
        return keys.take(pa.array(chosen, pa.int64()))

    @property
    def all(self) -> pa.RecordBatch:
        if self.keys is None:
            raise Rejected(
                "A keyed state was used without a key: it has one while a record or a timer of its"
                " stream is processed, not when the function opens or broadcast records come."
            )
        return self.keys


class RowState(ABC):
    """State that is held in dictionaries while a batch is processed."""

    @abstractmethod
    def flush(self) -> None:
        """Write back what the batch has changed, and drop the rest."""


@dataclass(slots=True)
class RowValueState(RowState):
    """Source: Flink's `ValueState`."""

    name: str
    current: CurrentKeys
    state: ValueState
    _loaded: list[Any] | None = None
    _read: set[int] = field(default_factory=set)
    _written: dict[int, Any] = field(default_factory=dict)
    _may_change: bool = field(init=False)

    def __post_init__(self) -> None:
        self._may_change = may_change(self.state.type)

    def value(self) -> Any:
        """None if there is no value. Changing the result changes nothing; `update` it."""
        index = self.current.index
        if index in self._written:
            value = self._written[index]
        else:
            if self._loaded is None:
                self._loaded = python_values(self.state.peek(self.current.all))
            self._read.add(index)
            value = self._loaded[index]
        return copy_of(value) if self._may_change else value

    def update(self, value: Any) -> None:
        """None clears the value."""
        self._written[self.current.index] = copy_of(value) if self._may_change else value

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
    """The beginning of the error that refuses a value."""
    return f"The state {state!r}"


@dataclass(slots=True)
class _RowAccumulators(RowState):
    name: str
    current: CurrentKeys
    state: Accumulators
    _loaded: list[Any] | None = None
    _read: set[int] = field(default_factory=set)
    _written: dict[int, Any] = field(default_factory=dict)
    _may_change: bool = field(init=False)

    def __post_init__(self) -> None:
        self._may_change = may_change(self.state.type)

    def clear(self) -> None:
        self._written[self.current.index] = None

    def flush(self) -> None:
        if self._read and self.state.renews_on_read:
            self.state.renew_read(self.current.take(self._read))
        gone = [index for index, value in self._written.items() if value is None]
        kept = {index: value for index, value in self._written.items() if value is not None}
        if gone:
            self.state.clear(self.current.take(gone))
        if kept:
            values = to_array(list(kept.values()), self.state.type, named(self.name))
            self.state.put(self.current.take(kept), values)
        self._loaded, self._read, self._written = None, set(), {}

    def _own(self, value: Any) -> Any:
        return copy_of(value) if self._may_change else value

    def _accumulator(self) -> Any:
        index = self.current.index
        if index in self._written:
            return self._written[index]
        if self._loaded is None:
            self._loaded = python_values(self.state.peek(self.current.all))
        return self._loaded[index]


@dataclass(slots=True)
class RowReducingState(_RowAccumulators):
    """Source: Flink's `ReducingState`."""

    reduce: Reduce = field(kw_only=True)

    def get(self) -> Any:
        """None if nothing was added. Changing the returned value changes nothing."""
        self._read.add(self.current.index)
        return self._own(self._accumulator())

    def add(self, value: Any) -> None:
        former, added = self._accumulator(), self._own(value)
        self._written[self.current.index] = added if former is None else self.reduce(former, added)


@dataclass(slots=True)
class RowAggregatingState(_RowAccumulators):
    """Source: Flink's `AggregatingState`."""

    aggregate: AggregateFunction = field(kw_only=True)

    def get(self) -> Any:
        """None if nothing was added."""
        self._read.add(self.current.index)
        accumulator = self._own(self._accumulator())
        return None if accumulator is None else self.aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        former = self._accumulator()
        started = self._own(self.aggregate.create_accumulator()) if former is None else former
        self._written[self.current.index] = self.aggregate.add(started, self._own(value))
