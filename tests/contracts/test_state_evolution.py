"""How state survives a change of its columns: added with a default, widened, or refused by name.

The tests run on every backend, through a checkpoint and either savepoint. A canonical savepoint
goes into the other backend.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.protocol.compatibility import is_wider
from pipelines.state.backend import BatchListDescriptor, StateBackend, TableDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.contracts.stored_states import StoredAs, store_states

MAX_PARALLELISM = 128
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)

TOTALS = TableDescriptor(
    name="totals",
    key=pa.schema([("carrier", pa.string())]),
    value=pa.schema([("flights", pa.int32()), ("delay", pa.float32())]),
    defaults={"flights": 0, "delay": 0.0},
    key_group_by=("carrier",),
)
EVENTS = BatchListDescriptor(
    "events", pa.schema([("carrier", pa.string()), ("delay", pa.int16())]), ("carrier",)
)


WAYS = [
    (StoredAs.CHECKPOINT, "hashmap", "hashmap"),
    (StoredAs.CHECKPOINT, "rocksdb", "rocksdb"),
    (StoredAs.CANONICAL, "hashmap", "rocksdb"),
    (StoredAs.CANONICAL, "rocksdb", "hashmap"),
    (StoredAs.NATIVE, "hashmap", "hashmap"),
    (StoredAs.NATIVE, "rocksdb", "rocksdb"),
]


@dataclass(frozen=True, slots=True)
class Build:
    """An operator's life before the change, and the one after it."""

    root: Path
    stored_as: StoredAs
    old: StateBackend
    new: StateBackend

    def hand_over(self) -> None:
        stored = store_states(self.root, [self.old], self.stored_as, MAX_PARALLELISM)
        stored.restore(self.new)


@pytest.fixture(params=WAYS, ids=" ".join)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Build]:
    stored_as, old, new = request.param
    with rocksdb_backends(TINY_BYTES, is_incremental=True) as rocksdb:
        create = {
            "hashmap": lambda *place: HashMapBackend(*place, is_incremental=True),
            "rocksdb": rocksdb,
        }
        place = ALL_GROUPS, MAX_PARALLELISM
        yield Build(tmp_path, stored_as, create[old](*place), create[new](*place))


def test_an_added_value_column_holds_its_default_and_the_others_stay(build: Build) -> None:
    value = pa.schema([*TOTALS.value, ("seen", pa.timestamp("ms")), ("late", pa.bool_())])
    added = replace(TOTALS, value=value, defaults={**TOTALS.defaults, "seen": 7, "late": True})

    restored = restored_table(build, added)

    assert restored == {"flights": [3, 4], "delay": [1.5, -2.0], "seen": [7, 7], "late": [1, 1]}


def test_a_widened_value_column_holds_the_same_values(build: Build) -> None:
    value = pa.schema([("flights", pa.int64()), ("delay", pa.float64())])

    assert restored_table(build, replace(TOTALS, value=value)) == {
        "flights": [3, 4],
        "delay": [1.5, -2.0],
    }


def test_a_narrowed_value_column_is_refused_with_state_column_and_both_types(
    build: Build,
) -> None:
    narrowed = pa.schema([("flights", pa.int16()), ("delay", pa.float32())])

    with pytest.raises(Rejected) as refused:
        restored_table(build, replace(TOTALS, value=narrowed))

    assert str(refused.value) == (
        "The column 'flights' of the state 'totals' is int32 in the snapshot and int16 in the "
        "operator."
    )


def test_a_dropped_column_is_refused_and_not_forgotten(build: Build) -> None:
    dropped = replace(TOTALS, value=pa.schema([("flights", pa.int32())]), defaults={"flights": 0})

    with pytest.raises(Rejected, match=r"'delay' \(float\) of the state 'totals'"):
        restored_table(build, dropped)


@pytest.mark.parametrize("key_type", [pa.large_string(), pa.int64()])
def test_a_key_column_never_changes_its_type(build: Build, key_type: pa.DataType) -> None:
    changed = replace(TOTALS, key=pa.schema([("carrier", key_type)]))

    with pytest.raises(Rejected, match=f"'carrier' of the state 'totals' is string .* {key_type}"):
        restored_table(build, changed)


def test_an_added_key_column_is_refused(build: Build) -> None:
    changed = replace(TOTALS, key=pa.schema([*TOTALS.key, ("origin", pa.string())]))

    with pytest.raises(Rejected, match="'totals' has no column 'origin'"):
        restored_table(build, changed)


def test_buffered_rows_get_the_declared_default_of_an_added_column(build: Build) -> None:
    schema = pa.schema([*EVENTS.schema, ("tail", pa.string())])
    added = replace(EVENTS, schema=schema, defaults={"tail": None})

    assert restored_rows(build, added) == [
        {"carrier": "AA", "delay": 5, "tail": None},
        {"carrier": "UA", "delay": 6, "tail": None},
    ]


def test_buffered_rows_without_a_declared_default_are_refused(build: Build) -> None:
    schema = pa.schema([*EVENTS.schema, ("tail", pa.string())])

    with pytest.raises(Rejected, match="'events' has no column 'tail'"):
        restored_rows(build, replace(EVENTS, schema=schema))


def test_buffered_rows_are_widened(build: Build) -> None:
    schema = pa.schema([("carrier", pa.string()), ("delay", pa.float64())])

    assert restored_rows(build, replace(EVENTS, schema=schema)) == [
        {"carrier": "AA", "delay": 5.0},
        {"carrier": "UA", "delay": 6.0},
    ]


NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("wide", [*NUMBERS, pa.uint64(), *FLOATS], ids=str)
@pytest.mark.parametrize("narrow", [*NUMBERS, *FLOATS], ids=str)
def test_a_wider_type_loses_no_value(narrow: pa.DataType, wide: pa.DataType) -> None:
    if not is_wider(str(narrow), str(wide)):
        return
    extremes = pa.array(extreme_values(narrow), narrow)

    assert extremes.cast(wide).cast(narrow).equals(extremes)


def restored_table(build: Build, declared: TableDescriptor) -> dict[str, list[object]]:
    """Returns the values of AA and UA by column, stored as TOTALS and read as `declared`."""
    old, new = build.old, build.new
    keys = pa.RecordBatch.from_pylist([{"carrier": "AA"}, {"carrier": "UA"}], TOTALS.key)
    stored = old.table(TOTALS)
    rows = stored.rows_for(keys)
    stored.write("flights", rows, pa.array([3, 4], pa.int32()).to_numpy())
    stored.write("delay", rows, pa.array([1.5, -2.0], pa.float32()).to_numpy())
    table = new.table(declared)

    build.hand_over()

    found = table.rows_for(keys)
    assert len(table) == 2
    return {name: table.read(name, found).tolist() for name in declared.value.names}


def restored_rows(build: Build, declared: BatchListDescriptor) -> list[dict[str, object]]:
    old, new = build.old, build.new
    events = [{"carrier": "AA", "delay": 5}, {"carrier": "UA", "delay": 6}]
    old.batch_list(EVENTS).append(9, pa.RecordBatch.from_pylist(events, EVENTS.schema))
    restored = new.batch_list(declared)

    build.hand_over()

    return [row for batch in restored.pop(9) for row in batch.to_pylist()]


def extreme_values(of: pa.DataType) -> list[float | int]:
    if pa.types.is_floating(of):
        fraction = {16: 11, 32: 24, 64: 53}[of.bit_width]
        return [2**fraction - 1, 1 / 1024, 0.0]
    bits = of.bit_width - pa.types.is_signed_integer(of)
    return [2**bits - 1, -(2**bits) if pa.types.is_signed_integer(of) else 0]
