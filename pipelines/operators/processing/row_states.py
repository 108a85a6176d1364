"""The keyed states of a row function, for the current key and with Python values.

These are value, reducing, aggregating, list and map state. The state of all keys of a batch is read
at first use, and written when the batch ends; in between it is in dictionaries. So a row function
pays for Python, not for a lookup per row. Lists and structs are copied on their way in and out:
changing one in place never changes the state, wherever the batch ends. The names are those of
Flink's state interfaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.rows import python_values, to_array
from pipelines.state.arrow_types import copy_of, may_change
from pipelines.state.descriptors import AggregateFunction, Reduce
from pipelines.state.list_state import ListState, MapState
from pipelines.state.value_state import Accumulators, ValueState


@dataclass(slots=True)
class CurrentKeys:
    """The distinct keys of the current batch, and the index of the current row's key."""

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
    """State that is kept in dictionaries while a batch is processed."""

    @abstractmethod
    def flush(self) -> None:
        """Writes back the changes of the batch, and drops the rest."""


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
        """Returns the value or None. Changing it does not change the state; `update` does."""
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
        """Returns a copy of the value, or None if nothing was added."""
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
        """Returns the result, or None if nothing was added."""
        self._read.add(self.current.index)
        accumulator = self._own(self._accumulator())
        return None if accumulator is None else self.aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        former = self._accumulator()
        started = self._own(self.aggregate.create_accumulator()) if former is None else former
        self._written[self.current.index] = self.aggregate.add(started, self._own(value))


@dataclass(slots=True, kw_only=True)
class RowListState(RowState):
    """Keeps, by key, the elements that this batch has read, added and replaced."""

    name: str
    current: CurrentKeys
    state: ListState
    _loaded: list[list[Any]] | None = None
    _read: set[int] = field(default_factory=set)
    _added: dict[int, list[Any]] = field(default_factory=dict)
    _replaced: dict[int, list[Any]] = field(default_factory=dict)
    _may_change: bool = field(init=False)

    def __post_init__(self) -> None:
        self._may_change = may_change(self.state.type)

    def get(self) -> list[Any]:
        """Returns the elements in order of arrival. Changing the list does not change the state."""
        return self._own(self._elements())

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        index = self.current.index
        changed = self._replaced if index in self._replaced else self._added
        changed.setdefault(index, []).extend(self._own(values))

    def update(self, values: Iterable[Any]) -> None:
        index = self.current.index
        self._replaced[index] = self._own(values)
        self._added.pop(index, None)

    def clear(self) -> None:
        self.update([])

    def flush(self) -> None:
        what = named(self.name)
        if self._read and self.state.renews_on_read:
            self.state.renew_read(self.current.take(self._read))
        if self._replaced:
            lists = to_array(list(self._replaced.values()), pa.list_(self.state.type), what)
            self.state.update(self.current.take(self._replaced), lists)
        if self._added:
            owners = [index for index, values in self._added.items() for _ in values]
            elements = [value for values in self._added.values() for value in values]
            self.state.add(self.current.take(owners), to_array(elements, self.state.type, what))
        self._loaded, self._read, self._added, self._replaced = None, set(), {}, {}

    def _own(self, values: Iterable[Any]) -> list[Any]:
        return [copy_of(value) for value in values] if self._may_change else list(values)

    def _elements(self) -> list[Any]:
        index = self.current.index
        if index in self._replaced:
            return self._replaced[index]
        if self._loaded is None:
            self._loaded = self.state.peek(self.current.all).to_pylist()
        self._read.add(index)
        return [*self._loaded[index], *self._added.get(index, ())]


@dataclass(slots=True, kw_only=True)
class RowMapState(RowState):
    """A batch loads the whole maps of its keys."""

    name: str
    current: CurrentKeys
    state: MapState
    _maps: list[dict[Any, Any]] | None = None
    _read: set[int] = field(default_factory=set)
    _cleared: set[int] = field(default_factory=set)
    _changed: dict[tuple[int, Any], None] = field(default_factory=dict)
    _read_entries: dict[tuple[int, Any], None] = field(default_factory=dict)
    _may_change: bool = field(init=False)

    def __post_init__(self) -> None:
        self._may_change = may_change(self.state.value_type)

    def get(self, key: Any) -> Any:
        """Returns the value or None. Changing the result does not change the state; `put` does."""
        self._read_entries[self.current.index, key] = None
        value = self._map().get(key)
        return copy_of(value) if self._may_change else value

    def contains(self, key: Any) -> bool:
        self._read_entries[self.current.index, key] = None
        return key in self._map()

    def put(self, key: Any, value: Any) -> None:
        self._map()[key] = copy_of(value) if self._may_change else value
        self._changed[self.current.index, key] = None

    def put_all(self, entries: dict[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._map().pop(key, None)
        self._changed[self.current.index, key] = None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterates over a copy, as do `keys` and `values`, so you may change the map meanwhile."""
        self._read.add(self.current.index)
        entries = list(self._map().items())
        return iter(copy_of(entries) if self._may_change else entries)

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        return not self._map()

    def clear(self) -> None:
        index = self.current.index
        if self._maps is not None:
            self._maps[index] = {}
        self._cleared.add(index)

    def flush(self) -> None:
        if self._read and self.state.renews_on_read:
            self.state.renew_read(self.current.take(self._read))
        if self._read_entries and self.state.renews_on_read:
            self.state.renew_read_entries(*self._pairs(list(self._read_entries)))
        if self._cleared:
            self.state.clear(self.current.take(self._cleared))
        self._write_changed()
        self._maps, self._read, self._cleared = None, set(), set()
        self._changed, self._read_entries = {}, {}

    def _write_changed(self) -> None:
        maps = self._maps or []
        present = [(i, key) for i, key in self._changed if key in maps[i]]
        absent = [(i, key) for i, key in self._changed if key not in maps[i]]
        if absent:
            self.state.remove(*self._pairs(absent))
        if present:
            values = [maps[index][key] for index, key in present]
            array = to_array(values, self.state.value_type, named(self.name))
            self.state.put(*self._pairs(present), array)

    def _map(self) -> dict[Any, Any]:
        if self._maps is None:
            lists = self.state.peek(self.current.all).to_pylist()
            self._maps = [{e["key"]: e["value"] for e in entries} for entries in lists]
            for index in self._cleared:
                self._maps[index] = {}
        return self._maps[self.current.index]

    def _pairs(self, pairs: list[tuple[int, Any]]) -> tuple[pa.RecordBatch, pa.Array]:
        keys = to_array([key for _, key in pairs], self.state.key_type, named(self.name))
        return self.current.take(index for index, _ in pairs), keys
