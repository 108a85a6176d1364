"""The contract of state backends, rule by rule; `test_state_model` compares with dictionaries."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NO_ROW,
    BatchListDescriptor,
    FrozenState,
    TableDescriptor,
)
from tests.contracts.state_tables import (
    ALL_GROUPS,
    BACKENDS,
    DEFAULTS,
    EVENTS,
    NUMBER,
    PROFILES,
    TEXT,
    VALUES,
    WINDOWED,
    Build,
    backends_named,
    batch_of,
    events,
    group_of,
    numbers,
    table_of,
)


@pytest.fixture(params=BACKENDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    with backends_named(request.param, monkeypatch) as build:
        yield build


def test_a_fresh_row_holds_the_defaults(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))

    rows = table.rows_for(numbers(5, 6))

    assert {name: table.read(name, rows).tolist() for name in VALUES.names} == {
        name: [default, default] for name, default in DEFAULTS.items()
    }


def test_keys_of_other_columns_are_refused_but_nullability_is_ignored(
    build: Build,
) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    [key] = NUMBER
    (row,) = table.rows_for(numbers(5))

    for other in (key.with_name("other"), key.with_type(pa.int16())):
        with pytest.raises(InvariantViolated, match="declared columns"):
            table.rows_for(batch_of(pa.schema([other]), [(5,)]))

    never_null = batch_of(pa.schema([key.with_nullable(False)]), [(5,)])
    assert table.rows_for(never_null).tolist() == [row]


def test_repeated_keys_within_a_batch_are_one_row(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))

    rows = table.rows_for(numbers(5, 6, 5, 5))

    assert len(set(rows.tolist())) == len(table) == 2
    assert rows[0] == rows[2] == rows[3]


def test_the_last_value_of_a_repeated_row_wins(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5, 6, 5))

    table.write("count", rows, np.array([1, 2, 3]))

    assert table.read("count", rows).tolist() == [3, 2, 3]


def test_reading_returns_a_copy(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(1))
    before = table.read("count", rows)

    table.write("count", rows, np.array([9]))

    assert before.tolist() == [0]


def test_a_deleted_key_that_is_added_again_has_the_defaults(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5, 6))
    table.write("count", rows, np.array([50, 60]))

    table.delete(rows[:1])
    fresh = table.rows_for(numbers(5, 7, 6))

    assert len(table) == 3
    assert table.read("count", fresh).tolist() == [0, 0, 60]


def test_deleting_nothing_changes_nothing(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5))

    table.delete(rows[:0])

    assert len(table) == 1


def test_row_numbers_stay_valid_while_the_table_grows(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    first = table.rows_for(numbers(1, 2, 3))

    table.rows_for(numbers(*range(10_000)))

    assert table.keys(first).column("id").to_pylist() == [1, 2, 3]
    assert table.rows_for(numbers(1, 2, 3)).tolist() == first.tolist()


@pytest.mark.parametrize("number", [7046029254386353131, 0, -1, 2**63 - 1, -(2**63)])
def test_every_number_works_as_a_key(build: Build, number: int) -> None:
    """The first of these numbers has the hash 0."""
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    neighbours = table.rows_for(numbers(*range(10, 20)))
    rows = table.rows_for(numbers(number, 3, number))
    table.write("count", rows[:1], np.array([8]))

    found = table.read("count", table.rows_for(numbers(number))).tolist()
    table.delete(rows[:1])
    after = table.read("count", table.rows_for(numbers(number))).tolist()

    assert (found, after) == ([8], [0])
    assert len(table) == 12
    assert table.keys(neighbours).column("id").to_pylist() == list(range(10, 20))


def test_dictionary_encoded_keys_are_the_same_keys(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(TEXT))
    plain = pa.record_batch({"name": ["a", "b", "a"]})
    encoded = pa.record_batch({"name": plain.column("name").dictionary_encode()})

    assert table.rows_for(plain).tolist() == table.rows_for(encoded).tolist()
    assert len(table) == 2


def test_due_windows_are_found_by_their_end(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(WINDOWED))
    ends = pa.array([10, 20, 30, 20], pa.timestamp("ms"))
    keys = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c", "d"]), ends], schema=WINDOWED)
    rows = table.rows_for(keys)
    table.delete(rows[3:])

    due = table.select_at_most("window_end", 20)

    assert sorted(table.keys(due).column("name").to_pylist()) == ["a", "b"]
    assert table.select_at_most("window_end", 9).tolist() == []


def test_a_cut_has_the_name_kind_rows_and_schema_of_each_state(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER)).rows_for(numbers(1, 2, 3))
    backend.batch_list(EVENTS).append(5, events(("a", 1)))

    table, batches = backend.cut()

    assert (table.name, table.kind, table.rows) == ("table", "table", 3)
    assert (batches.name, batches.kind, batches.rows) == ("events", "batches", 1)
    assert table.schema == pa.schema([*NUMBER, *VALUES, (KEY_GROUP_COLUMN, pa.uint16())])
    added = [("__namespace", pa.int64()), (KEY_GROUP_COLUMN, pa.uint16())]
    assert batches.schema == pa.schema([*EVENTS.schema, *(pa.field(*a) for a in added)])
    for frozen in (table, batches):
        assert all(batch.schema == frozen.schema for batch in frozen.batches)


def test_empty_states_give_an_empty_cut(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER))
    backend.batch_list(EVENTS)

    assert [(frozen.rows, list(frozen.batches)) for frozen in backend.cut()] == [(0, []), (0, [])]


def test_the_key_group_depends_only_on_the_key_of_the_stream(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(WINDOWED))
    ends = pa.array(range(20), pa.timestamp("ms"))
    table.rows_for(pa.RecordBatch.from_arrays([pa.array(["a"] * 20), ends], schema=WINDOWED))

    [frozen] = backend.cut()
    groups = {
        group for batch in frozen.batches for group in batch.column(KEY_GROUP_COLUMN).to_pylist()
    }

    assert groups == {group_of("a")}


def test_declaring_again_gives_the_same_state(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER)).rows_for(numbers(1))
    backend.batch_list(EVENTS).append(1, events(("a", 1)))

    assert len(backend.table(table_of(NUMBER))) == 1
    assert len(backend.batch_list(EVENTS)) == 1


def test_declaring_one_name_for_two_states_is_refused(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER))

    with pytest.raises(Rejected, match="'table' is declared twice, and differently"):
        backend.table(table_of(TEXT))
    with pytest.raises(Rejected, match="'table' is declared twice, and differently"):
        backend.batch_list(BatchListDescriptor("table", EVENTS.schema, ("name",)))


def test_a_snapshot_of_an_unknown_state_is_refused(build: Build) -> None:
    with pytest.raises(Rejected, match="a state 'gone' that the operator does not have"):
        build(ALL_GROUPS).restore("gone", [])


@pytest.mark.parametrize("column", [*NUMBER.names, KEY_GROUP_COLUMN])
def test_a_table_snapshot_without_a_column_is_refused_by_name(build: Build, column: str) -> None:
    snapshot = one_row_snapshot(build)
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    with pytest.raises(Rejected, match=f"of the state 'table' has no column '{column}'"):
        backend.restore("table", [snapshot.drop_columns([column])])
    assert len(table) == 0


@pytest.mark.parametrize("column", [*NUMBER.names, *VALUES.names, KEY_GROUP_COLUMN])
def test_a_column_of_another_type_is_refused_by_name_and_types(build: Build, column: str) -> None:
    snapshot = one_row_snapshot(build)
    index = snapshot.schema.get_field_index(column)
    altered = snapshot.set_column(index, column, pa.array(["x"]))
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    with pytest.raises(Rejected) as refused:
        backend.restore("table", [altered])

    assert str(refused.value) == (
        f"The column '{column}' of the state 'table' is string in the snapshot and "
        f"{snapshot.schema.field(index).type} in the operator."
    )
    assert len(table) == 0


def test_columns_in_another_order_are_the_same_columns(build: Build) -> None:
    snapshot = one_row_snapshot(build)
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    backend.restore("table", [snapshot.select(snapshot.schema.names[::-1])])

    assert table.read("count", table.rows_for(numbers(1))).tolist() == [42]


def test_statistics_grow_with_the_rows(build: Build) -> None:
    backend = build(ALL_GROUPS)
    empty = backend.statistics()
    backend.table(table_of(NUMBER)).rows_for(numbers(*range(5000)))
    backend.batch_list(EVENTS).append(1, events(("a", 1), ("b", 2)))

    assert (empty.rows, empty.state_bytes) == (0, 0)
    assert backend.statistics().rows == 5002
    assert backend.statistics().state_bytes >= 5000 * 8


def test_keys_that_come_and_go_do_not_make_the_state_grow(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    sizes: list[int] = []

    for number in range(30):
        rows = table.rows_for(numbers(*range(number * 1000, number * 1000 + 1000)))
        sizes.append(backend.statistics().state_bytes)
        table.delete(rows)

    assert len(table) == 0
    assert sizes[-1] == sizes[0]


def test_a_restored_batch_list_has_about_its_old_size(build: Build) -> None:
    backend, restored = build(ALL_GROUPS), build(ALL_GROUPS)
    restored.batch_list(EVENTS)
    for namespace in range(100):
        backend.batch_list(EVENTS).append(namespace, events(*[("a", n) for n in range(50)]))

    restored.restore("events", backend.cut()[0].batches)

    before, after = backend.statistics(), restored.statistics()
    assert before.rows == after.rows
    assert 0.5 < after.state_bytes / before.state_bytes < 2


@pytest.mark.parametrize("column", ["__namespace", KEY_GROUP_COLUMN, "amount"])
def test_a_batch_list_snapshot_without_a_column_is_refused(build: Build, column: str) -> None:
    backend = build(ALL_GROUPS)
    backend.batch_list(EVENTS).append(1, events(("a", 1)))
    [batch] = backend.cut()[0].batches

    with pytest.raises(Rejected, match=f"of the state 'events' has no column '{column}'"):
        backend.restore("events", [batch.drop_columns([column])])


def test_null_is_a_key_of_its_own_and_found_only_where_it_was_added(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    null = batch_of(NUMBER, [(None,)])

    zero = table.rows_for(numbers(0))
    before = table.find(null)
    rows = table.rows_for(batch_of(NUMBER, [(0,), (None,), (None,)]))

    assert before.tolist() == [NO_ROW]
    assert rows.tolist() == [zero[0], rows[1], rows[1]]
    assert rows[0] != rows[1]
    assert table.find(null).tolist() == [rows[1]]


def test_a_null_in_one_key_column_is_a_key_of_its_own(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(WINDOWED))

    rows = table.rows_for(
        batch_of(WINDOWED, [("UA", 5), (None, 5), ("UA", None), (None, None), (None, 5)])
    )

    assert len(set(rows[:4].tolist())) == len(table) == 4
    assert rows[4] == rows[1]


def test_a_key_that_was_never_seen_is_not_found_and_not_added(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(WINDOWED))
    assert table.find(batch_of(WINDOWED, [("UA", 5)])).tolist() == [NO_ROW]
    known = table.rows_for(batch_of(WINDOWED, [("UA", 5), (None, 5)]))

    found = table.find(batch_of(WINDOWED, [("AA", 5), (None, 5), ("UA", None), ("UA", 5)]))

    assert found.tolist() == [NO_ROW, known[1], NO_ROW, known[0]]
    assert len(table) == 2


def test_nan_is_a_value_and_not_null(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(PROFILES)
    rows = table.rows_for(batch_of(PROFILES.key, [(1, "a"), (2, "a")]))

    table.write_arrow("ratio", rows, pa.array([float("nan"), None]))

    assert table.read_arrow("ratio", rows).is_null().to_pylist() == [False, True]
    rows_in_cut = [row for batch in backend.cut()[0].batches for row in batch.to_pylist()]
    assert {row["user"]: row["ratio"] is None for row in rows_in_cut} == {1: False, 2: True}


def test_a_table_may_hold_keys_alone(build: Build) -> None:
    keys_alone = TableDescriptor("timers", WINDOWED, pa.schema([]), {}, ("name",))
    backend, restored = build(ALL_GROUPS), build(ALL_GROUPS)
    key = batch_of(WINDOWED, [("UA", 5)])
    backend.table(keys_alone).rows_for(key)
    table = restored.table(keys_alone)

    restored.restore("timers", backend.cut()[0].batches)

    assert table.keys(table.find(key)).equals(key)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_scan_visits_every_remaining_row_while_others_come_and_go(
    build: Build, limit: int
) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    table.delete(table.rows_for(numbers(*range(100)))[10:30])
    met: list[int] = []

    position = None
    for number in range(1000):
        found, position = table.scan(position, limit)
        assert len(found) <= limit
        met += table.keys(found).column("id").to_pylist()
        if position is None:
            break
        table.rows_for(numbers(1000 + number))
        table.delete(table.find(numbers(1000 + number)))
        backend.settle()

    assert position is None
    assert set(met) >= {*range(10), *range(30, 100)}
    assert not set(met) & set(range(10, 30))


def test_later_writes_change_neither_of_two_pending_cuts(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    rows = table.rows_for(numbers(1, 2))
    table.write("count", rows, np.array([1, 2]))
    first = backend.cut()
    table.write("count", rows[:1], np.array([10]))
    second = backend.cut()
    table.delete(rows)
    table.write("count", table.rows_for(numbers(*range(3, 3000))), np.full(2997, -1))

    assert counts_in(second) == {1: 10, 2: 2}
    assert counts_in(first) == {1: 1, 2: 2}
    assert first[0].rows == second[0].rows == 2


def counts_in(cut: list[FrozenState]) -> dict[int, int]:
    return {row["id"]: row["count"] for batch in cut[0].batches for row in batch.to_pylist()}


def one_row_snapshot(build: Build) -> pa.RecordBatch:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    table.write("count", table.rows_for(numbers(1)), np.array([42]))
    [frozen] = backend.cut()
    [batch] = frozen.batches
    return batch
