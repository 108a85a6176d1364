"""An author's declaration of a keyed state: its name, Arrow types, functions and time-to-live.

A struct is kept as one column per field, every other type as one column named like the state. No
Python object is stored. A declaration that a backend cannot keep is refused before the first
record. Source: Flink's `StateDescriptor` family.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.arrow_types import check_default, check_key_type, check_value_type
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BatchListDescriptor,
    TableDescriptor,
)
from pipelines.state.entries import StateTtlConfig

# Names become part of file names. The dot is reserved for tables that the engine adds to a state.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")

Reduce = Callable[[Any, Any], Any]
"""Must be associative. In a batch function it gets two arrays of equal length and combines them
element by element (`pyarrow.compute.add`); in a row function it gets two Python values."""


@dataclass(frozen=True, slots=True)
class StateDescriptor:
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Rejected(
                f"The state name {self.name!r} cannot be used: a name is 1 to 60 letters, digits,"
                " '_' or '-' and starts with a letter or digit."
            )


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key; null if there is none."""

    type: pa.DataType
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(StateDescriptor):
    """A list of elements per key, in order of arrival."""

    type: pa.DataType
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(StateDescriptor):
    """A map per key. Map keys need a type that can be a key; null is a valid map key."""

    key_type: pa.DataType
    value_type: pa.DataType
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, into which every added value is reduced."""

    reduce: Reduce
    type: pa.DataType
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)


class AggregateFunction(ABC):
    """The function of an aggregating state in a row function; works on Python values."""

    @abstractmethod
    def create_accumulator(self) -> Any: ...

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """Returns the new accumulator."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any: ...


class BatchAggregateFunction(ABC):
    """The function of an aggregating state in a batch function; works on arrays.

    An array has one element per record or key.
    """

    @abstractmethod
    def lift(self, values: pa.Array) -> pa.Array:
        """Returns the accumulator of each single value."""

    @abstractmethod
    def merge(self, left: pa.Array, right: pa.Array) -> pa.Array:
        """Merges element by element. Must be associative; `left` arrived before `right`."""

    @abstractmethod
    def get_result(self, accumulators: pa.Array) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator per key; the added values and the results may have other types."""

    aggregate: AggregateFunction | BatchAggregateFunction
    accumulator_type: pa.DataType
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)


def check_table(descriptor: TableDescriptor) -> None:
    for column in descriptor.key:
        check_key_type(descriptor.name, column)
    for column in descriptor.value:
        check_value_type(descriptor.name, column)
        if column.name not in descriptor.defaults:
            raise Rejected(f"State '{descriptor.name}': '{column.name}' has no default.")
        check_default(descriptor.name, column, descriptor.defaults[column.name])
    if not len(descriptor.key):
        raise Rejected(f"State '{descriptor.name}' declares no key column.")
    _check_columns(descriptor.name, [*descriptor.key, *descriptor.value])
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.key)


def check_batch_list(descriptor: BatchListDescriptor) -> None:
    _check_columns(descriptor.name, list(descriptor.schema))
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.schema)


def _check_columns(state: str, fields: list[pa.Field]) -> None:
    names = [column.name for column in fields]
    for name in names:
        if name in (KEY_GROUP_COLUMN, NAMESPACE_COLUMN):
            raise Rejected(f"State '{state}': the column name '{name}' is reserved.")
        if names.count(name) > 1:
            raise Rejected(f"State '{state}': the column '{name}' is declared twice.")


def _check_grouping(state: str, key_group_by: tuple[str, ...], schema: pa.Schema) -> None:
    if not key_group_by:
        raise Rejected(f"State '{state}' names no column that decides the key group.")
    for name in key_group_by:
        if name not in schema.names:
            raise Rejected(f"State '{state}': there is no column '{name}' to decide key groups.")
        check_key_type(state, schema.field(name))
