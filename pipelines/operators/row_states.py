"""States as a row function sees them: of the current key, in Python values.

What a batch touches is read once, for all of its keys, when it is first asked for, and written
once, when the batch ends; in between it lies in dictionaries. So a row function pays for Python,
not for a lookup per row. The names are those of Flink's state interfaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.rows import to_array
from pipelines.state.descriptors import AggregateFunction, Reduce
from pipelines.state.folding_state import Accumulators
from pipelines.state.list_state import ListState
from pipelines.state.map_state import MapState
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
            values = to_array(list(self._written.values()), self.state.type, _what(self.name))
            self.state.update(self.current.take(self._written), values)
        self._loaded, self._read, self._written = None, set(), {}


@dataclass(slots=True)
class RowListState(RowState):
    """Source: Flink's `ListState`."""

    name: str
    current: CurrentKeys
    state: ListState
    _loaded: list[list[Any]] | None = None
    _read: set[int] = field(default_factory=set)
    _added: dict[int, list[Any]] = field(default_factory=dict)
    _replaced: dict[int, list[Any]] = field(default_factory=dict)

    def get(self) -> list[Any]:
        """In order of arrival. Changing what is returned changes nothing."""
        index = self.current.index
        if index in self._replaced:
            return list(self._replaced[index])
        if self._loaded is None:
            self._loaded = self.state.peek(self.current.all).to_pylist()
        self._read.add(index)
        return [*self._loaded[index], *self._added.get(index, ())]

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        index = self.current.index
        changed = self._replaced if index in self._replaced else self._added
        changed.setdefault(index, []).extend(values)

    def update(self, values: Iterable[Any]) -> None:
        index = self.current.index
        self._replaced[index] = list(values)
        self._added.pop(index, None)

    def clear(self) -> None:
        self.update([])

    def flush(self) -> None:
        what = _what(self.name)
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


@dataclass(slots=True)
class RowMapState(RowState):
    """Source: Flink's `MapState`. A batch loads the whole maps of its keys."""

    name: str
    current: CurrentKeys
    state: MapState
    _maps: list[dict[Any, Any]] | None = None
    _read: set[int] = field(default_factory=set)
    _cleared: set[int] = field(default_factory=set)
    _changed: dict[tuple[int, Any], None] = field(default_factory=dict)
    _read_entries: dict[tuple[int, Any], None] = field(default_factory=dict)

    def get(self, key: Any) -> Any:
        """None where there is none."""
        self._read_entries[self.current.index, key] = None
        return self._map().get(key)

    def contains(self, key: Any) -> bool:
        self._read_entries[self.current.index, key] = None
        return key in self._map()

    def put(self, key: Any, value: Any) -> None:
        self._map()[key] = value
        self._changed[self.current.index, key] = None

    def put_all(self, entries: dict[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._map().pop(key, None)
        self._changed[self.current.index, key] = None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """A copy, so that the map may be changed on the way; so are `keys` and `values`."""
        self._read.add(self.current.index)
        return iter(list(self._map().items()))

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
            array = to_array(values, self.state.value_type, _what(self.name))
            self.state.put(*self._pairs(present), array)

    def _map(self) -> dict[Any, Any]:
        if self._maps is None:
            lists = self.state.peek(self.current.all).to_pylist()
            self._maps = [{e["key"]: e["value"] for e in entries} for entries in lists]
            for index in self._cleared:
                self._maps[index] = {}
        return self._maps[self.current.index]

    def _pairs(self, pairs: list[tuple[int, Any]]) -> tuple[pa.RecordBatch, pa.Array]:
        keys = to_array([key for _, key in pairs], self.state.key_type, _what(self.name))
        return self.current.take(index for index, _ in pairs), keys


@dataclass(slots=True)
class _RowAccumulators(RowState):
    name: str
    current: CurrentKeys
    state: Accumulators
    _loaded: list[Any] | None = None
    _read: set[int] = field(default_factory=set)
    _written: dict[int, Any] = field(default_factory=dict)

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
            values = to_array(list(kept.values()), self.state.type, _what(self.name))
            self.state.put(self.current.take(kept), values)
        self._loaded, self._read, self._written = None, set(), {}

    def _accumulator(self) -> Any:
        index = self.current.index
        if index in self._written:
            return self._written[index]
        if self._loaded is None:
            self._loaded = self.state.peek(self.current.all).to_pylist()
        return self._loaded[index]


@dataclass(slots=True)
class RowReducingState(_RowAccumulators):
    """Source: Flink's `ReducingState`."""

    reduce: Reduce = field(kw_only=True)

    def get(self) -> Any:
        """None where nothing was added."""
        self._read.add(self.current.index)
        return self._accumulator()

    def add(self, value: Any) -> None:
        former = self._accumulator()
        self._written[self.current.index] = value if former is None else self.reduce(former, value)


@dataclass(slots=True)
class RowAggregatingState(_RowAccumulators):
    """Source: Flink's `AggregatingState`."""

    aggregate: AggregateFunction = field(kw_only=True)

    def get(self) -> Any:
        """None where nothing was added."""
        self._read.add(self.current.index)
        accumulator = self._accumulator()
        return None if accumulator is None else self.aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        former = self._accumulator()
        started = self.aggregate.create_accumulator() if former is None else former
        self._written[self.current.index] = self.aggregate.add(started, value)


def _what(name: str) -> str:
    return f"The state {name!r}"
