"""The list of the current key, for a row function. Source: Flink's `ListState`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.operators.row_states import CurrentKeys, RowState, named
from pipelines.operators.rows import to_array
from pipelines.state.copies import copy_of, may_change
from pipelines.state.list_state import ListState


@dataclass(slots=True)
class RowListState(RowState):
    """Holds what this batch has read, added and replaced, by key."""

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
        """The elements in order of arrival. Changing the returned list changes nothing."""
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
