"""One table of a keyed state, restricted to the entries that its time-to-live lets readers see.

Owns expiry for everything kept one row per key: values, accumulators, the elements of lists and the
entries of maps. Those states decide which rows belong together.

Time is processing time, which the caller passes in, in milliseconds since the epoch. The time of
the last update is stored, and expiry is computed from it; so a changed duration also applies to old
entries.

Source: Flink's `StateTtlConfig` and `AbstractTtlDecorator`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.arrow_types import ValueLayout
from pipelines.state.backend import (
    NO_ROW,
    Default,
    Rows,
    ScanPosition,
    StateBackend,
    Table,
    TableDescriptor,
)

UPDATED_COLUMN = "__updated_ms"
"""Added to every table with a time-to-live: int64, the time of the entry's last update."""

NOT_YET_UPDATED_MS = 2**62
"""The time of entries that were stored before their state had a time-to-live: they begin to age at
their next update, not at once."""

CLEANED_PER_BATCH = 1_000
"""Entries checked for expiry after each batch: a bounded cost, like Flink's incremental cleanup."""


class TtlUpdate(StrEnum):
    """The accesses that restart an entry's time. Flink: `StateTtlConfig.UpdateType`."""

    ON_CREATE_AND_WRITE = "OnCreateAndWrite"
    ON_READ_AND_WRITE = "OnReadAndWrite"


class TtlVisibility(StrEnum):
    """Decides if an expired entry may still be read. Flink: `StateTtlConfig.StateVisibility`."""

    NEVER_RETURN_EXPIRED = "NeverReturnExpired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "ReturnExpiredIfNotCleanedUp"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """An entry expires `ttl_ms` after its last update. Lists and maps expire entry by entry."""

    ttl_ms: int
    update_type: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: TtlVisibility = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        if self.ttl_ms <= 0:
            raise Rejected(f"A time-to-live of {self.ttl_ms} ms cannot be; it must be positive.")

    @property
    def renews_on_read(self) -> bool:
        return self.update_type is TtlUpdate.ON_READ_AND_WRITE

    @property
    def hides_expired(self) -> bool:
        return self.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def has_expired(self, updated_ms: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
        return np.asarray(updated_ms <= now_ms - self.ttl_ms)


NowMs = Callable[[], int]
"""Processing time, milliseconds since the epoch; never goes back."""

Mask = npt.NDArray[np.bool_]

_NO_COLUMNS = pa.schema([])


@dataclass(frozen=True, slots=True)
class KeyedStateContext:
    """The environment of one operator's states: its stream key, its backend and its clock."""

    backend: StateBackend
    key: pa.Schema
    now_ms: NowMs

    def table(self, name: str, key: pa.Schema, value: pa.Schema, defaults: "Defaults") -> Table:
        """Keys begin with the columns of the stream's key, which alone decide the key group."""
        whole = pa.schema([*self.key, *key])
        by = tuple(self.key.names)
        return self.backend.table(TableDescriptor(name, whole, value, defaults, by))


Defaults = dict[str, Default]


class Entries:
    """Values by key; `key` lists the columns that follow those of the stream's key.

    `extra` lists further columns of the same rows, which the state itself maintains. They never
    expire on their own.
    """

    def __init__(
        self,
        context: KeyedStateContext,
        layout: ValueLayout,
        ttl: StateTtlConfig | None,
        *,
        key: pa.Schema = _NO_COLUMNS,
        extra: Defaults | None = None,
    ) -> None:
        defaults: Defaults = dict.fromkeys(layout.schema.names)
        added = dict(extra or {})
        if ttl is not None:
            added[UPDATED_COLUMN] = NOT_YET_UPDATED_MS
        value = pa.schema([*layout.schema, *((name, pa.int64()) for name in added)])
        self.table = context.table(layout.state, key, value, defaults | added)
        self._layout = layout
        self._ttl = ttl
        self._now_ms = context.now_ms
        self._scanned: ScanPosition | None = None

    @property
    def type(self) -> pa.DataType:
        return self._layout.type

    @property
    def ttl(self) -> StateTtlConfig | None:
        return self._ttl

    @property
    def renews_on_read(self) -> bool:
        return self._ttl is not None and self._ttl.renews_on_read

    def read(self, rows: Rows) -> pa.Array:
        """Returns the values at `rows`, with null where a row is NO_ROW."""
        found = rows != NO_ROW
        if found.all():
            return self._layout.read(self.table, rows)
        present = self._layout.read(self.table, rows[found])
        index = np.cumsum(found) - 1
        return present.take(pa.array(index, mask=~found))

    def write(self, rows: Rows, values: pa.Array) -> None:
        self._layout.write(self.table, rows, values)
        self.renew(rows)

    def renew(self, rows: Rows) -> None:
        """Notes that the entries at `rows` have been updated now."""
        if self._ttl is not None:
            now_ms = np.full(len(rows), self._now_ms(), np.int64)
            self.table.write(UPDATED_COLUMN, rows, now_ms)

    def expired(self, rows: Rows) -> Mask:
        """Flags the `rows` whose time-to-live is over; `rows` may contain NO_ROW."""
        mask = np.zeros(len(rows), np.bool_)
        if self._ttl is not None:
            found = rows != NO_ROW
            updated_ms = self.table.read(UPDATED_COLUMN, rows[found]).astype(np.int64, copy=False)
            mask[found] = self._ttl.has_expired(updated_ms, self._now_ms())
        return mask

    def visible(self, rows: Rows) -> Mask:
        """Flags the `rows` that hold a value that may be read."""
        found: Mask = rows != NO_ROW
        if self._ttl is not None and self._ttl.hides_expired:
            found &= ~self.expired(rows)
        return found

    def renew_read(self, rows: Rows) -> None:
        """Notes that the entries at `rows` have been read, which keeps unexpired ones alive."""
        if self.renews_on_read:
            found = distinct_rows(rows)
            self.renew(found[~self.expired(found)])

    def scan_expired(self, limit: int) -> Rows:
        """Returns the expired ones of the next `limit` rows; repeated calls cycle through all."""
        if self._ttl is None:
            return np.empty(0, np.int64)
        rows, self._scanned = self.table.scan(self._scanned, limit)
        return rows[self.expired(rows)]


def distinct_rows(rows: Rows) -> Rows:
    """Returns each row once, without NO_ROW."""
    return np.unique(rows[rows != NO_ROW])


def last_of_each(rows: Rows) -> Rows:
    """The last position of each distinct row."""
    _, first = np.unique(rows[::-1], return_index=True)
    return np.asarray(len(rows) - 1 - first)


def ranks(groups: Rows) -> Rows:
    """Returns, for each element, how many earlier elements are in the same group."""
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    lengths = np.diff(starts, append=len(groups))
    result = np.empty(len(groups), np.int64)
    result[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return result


def ranges(starts: Rows, lengths: Rows) -> tuple[Rows, Rows]:
    """Returns all numbers of the ranges, one range after another, and the range of each number."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) - before[owner] + starts[owner], owner


def with_column(keys: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    schema = keys.schema.append(pa.field(name, column.type))
    return pa.RecordBatch.from_arrays([*keys.columns, column], schema=schema)
