"""A map that is the same in every subtask, because every subtask builds it from the same records.

Source: Flink's `BroadcastState`, written where broadcast records are processed, read anywhere.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.domain.redistribution import Redistribution
from pipelines.state.arrow_types import check_key_type
from pipelines.state.backend import FrozenState
from pipelines.state.copies import copy_of, may_change
from pipelines.state.descriptors import MapStateDescriptor

KEY = "key"
VALUE = "value"


class BroadcastState:
    """Small: kept in memory as Python values; a cut turns them into arrays.

    Guarantee: functions read what a cut holds. Values are copied on their way in and out, so that
    only `put` and `remove` change the state.
    """

    kind = Redistribution.BROADCAST

    def __init__(self, name: str, descriptor: MapStateDescriptor) -> None:
        self.name = name
        self.schema = pa.schema([(KEY, descriptor.key_type), (VALUE, descriptor.value_type)])
        self.is_writable = False  # only while broadcast records are processed
        check_key_type(descriptor.name, self.schema.field(KEY))
        self._descriptor = descriptor
        self._may_change = may_change(descriptor.value_type)
        self._entries: dict[Any, Any] = {}
        self._arrays: tuple[pa.Array, pa.Array] | None = None  # the entries, until they change
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """As of the last cut or look-up; any thread may ask."""
        return self._nbytes

    def get(self, key: Any) -> Any:
        """None if there is no value. Changing the result changes nothing; `put` it."""
        value = self._entries.get(key)
        return copy_of(value) if self._may_change else value

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The present entries, copied as by `get`."""
        entries = list(self._entries.items())
        return iter(copy_of(entries) if self._may_change else entries)

    def look_up(self, keys: pa.Array) -> pa.Array:
        """The value of each key, null where there is none."""
        known, values = self._columns()
        return values.take(pc.index_in(keys, value_set=known))

    def put(self, key: Any, value: Any) -> None:
        """Raises Rejected unless broadcast records are processed."""
        self._check_writable()
        self._entries[key] = copy_of(value) if self._may_change else value
        self._arrays = None

    def put_all(self, keys: pa.Array, values: pa.Array) -> None:
        """Where keys repeat, the last value stays. Raises Rejected as `put` does."""
        self._check_writable()
        self._put_all(keys, values)

    def remove(self, key: Any) -> None:
        """Raises Rejected unless broadcast records are processed."""
        self._check_writable()
        self._entries.pop(key, None)
        self._arrays = None

    def freeze(self) -> FrozenState:
        """Raises Rejected if an entry does not have the declared types."""
        batch = pa.RecordBatch.from_arrays(list(self._columns()), schema=self.schema)
        return FrozenState(self.name, self.kind, self.schema, len(self), iter([batch]))

    def restore(self, batch: pa.RecordBatch) -> None:
        self._put_all(batch.column(KEY), batch.column(VALUE))

    def _put_all(self, keys: pa.Array, values: pa.Array) -> None:
        self._entries.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        self._arrays = None

    def _columns(self) -> tuple[pa.Array, pa.Array]:
        if self._arrays is None:
            try:
                keys = pa.array(list(self._entries), self._descriptor.key_type)
                values = pa.array(list(self._entries.values()), self._descriptor.value_type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise Rejected(
                    f"The state {self._descriptor.name!r} maps {self._descriptor.key_type} to"
                    f" {self._descriptor.value_type}; an entry does not fit: {error}"
                ) from error
            self._arrays = keys, values
            self._nbytes = keys.nbytes + values.nbytes
        return self._arrays

    def _check_writable(self) -> None:
        if not self.is_writable:
            raise Rejected(
                f"The broadcast state {self._descriptor.name!r} can only be written where the"
                " broadcast records are processed: elsewhere the subtasks would differ."
            )
