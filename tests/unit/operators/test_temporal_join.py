"""Temporal joins compared with a model, over random rows, watermarks, cuts and parallelisms."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.joining.temporal_join import (
    EventTimeTemporalJoin,
    ProcessingTimeTemporalJoin,
)
from pipelines.operators.joining.window_join import JoinKind
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, Pipeline, Stream, tumbling
from pipelines.stream import count as count_of
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Row
from tests.unit.operators.joined_rows import (
    LEFT,
    ON,
    RIGHT,
    TIMES,
    Pair,
    Rec,
    as_pair,
    late_of,
    maybe_restore,
    number,
    random_input,
    row,
)
from tests.unit.operators.subtasks import Subtasks

KINDS = [JoinKind.INNER, JoinKind.LEFT]
TIME = pa.timestamp("ms", "UTC")
ORDERS = pa.schema([("order", pa.int64()), ("currency", pa.string()), ("at", TIME)])
RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64()), ("since", TIME)])
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_each_row_gets_the_version_valid_at_its_event_time(seed: int, kind: JoinKind) -> None:
    check_event_time(random.Random(seed), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_each_row_gets_the_version_that_arrived_last_in_processing_time(
    seed: int, kind: JoinKind
) -> None:
    check_processing_time(random.Random(seed), kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_temporal_joins_are_the_same_when_state_is_in_rocksdb(seed: int) -> None:
    with rocksdb_backends(TINY_BYTES) as backends:
        check_event_time(random.Random(seed), JoinKind.LEFT, backends)
        check_processing_time(random.Random(seed), JoinKind.LEFT, backends)


def check_event_time(
    rng: random.Random, kind: JoinKind, backends: BackendFactory = HashMapBackend
) -> None:
    """Rows with equal keys and times have different numbers; the last to arrive counts."""
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, kind), [LEFT, RIGHT], [ON, ON], backends=backends
    )
    waiting: list[Rec] = []
    versions: list[Rec] = []
    watermark = -100
    joined.advance(watermark)

    for port, records in random_input(rng):
        joined.send([row(port, each) for each in records], port)
        if port == 1:
            versions += records
            late = [each for each in records if each[2] <= watermark]
        else:
            waiting += [each for each in records if each[2] >= watermark]
            late = [each for each in records if each[2] < watermark]
        assert sorted(map(number, late_of(joined, port))) == sorted(each[3] for each in late)
        assert joined.emitted.take() == []
        maybe_restore(joined, rng)
        watermark += rng.choice([0, rng.randint(0, 30), rng.randint(0, 30)])
        joined.advance(watermark)
        due = [each for each in waiting if each[2] <= watermark]
        waiting = [each for each in waiting if each[2] > watermark]
        out = joined.emitted.take()
        assert Counter(map(as_pair, out)) == Counter(expected(due, versions, kind))
        maybe_restore(joined, rng)
    joined.advance(MAX_WATERMARK_MS)

    last = Counter(map(as_pair, joined.emitted.take()))
    assert last == Counter(expected(waiting, versions, kind))
    assert joined.state_rows == len({v[:2] for v in versions if None not in v[:2]})


def check_processing_time(
    rng: random.Random, kind: JoinKind, backends: BackendFactory = HashMapBackend
) -> None:
    joined = Subtasks(
        lambda: ProcessingTimeTemporalJoin(ON, kind), [LEFT, RIGHT], [ON, ON], backends=backends
    )
    newest: dict[tuple, int] = {}

    for port, records in random_input(rng):
        joined.send([row(port, each) for each in records], port)
        found = [as_pair(each) for each in joined.emitted.take()]
        if port == 1:
            assert found == []
            newest |= {each[:2]: each[3] for each in records if None not in each[:2]}
        else:
            pairs = [(each[3], newest.get(each[:2])) for each in records]
            assert Counter(found) == Counter(kept(pairs, kind))
        assert joined.state_rows == len(newest)
        maybe_restore(joined, rng)


def test_rows_are_emitted_in_event_time_order_with_all_columns() -> None:
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON]
    )
    joined.send([row(0, ("a", 1, 30, 3)), row(0, ("a", 1, 10, 1)), row(0, ("b", 1, 20, 2))])
    joined.send([row(1, ("a", 1, 5, 7))], 1)

    joined.advance(30)

    assert [as_pair(each) for each in joined.emitted.rows] == [(1, 7), (2, None), (3, 7)]
    first = joined.emitted.rows[0]
    assert (first["key"], first["id"], first["at"], first["seen"]) == (
        "a",
        1,
        row(0, ("a", 1, 10, 1))["at"],
        row(1, ("a", 1, 5, 7))["seen"],
    )


def test_a_late_version_applies_to_later_rows_unless_a_newer_one_exists() -> None:
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON]
    )
    joined.send([row(1, ("a", 1, 0, 1)), row(1, ("b", 1, 9, 5))], 1)
    joined.advance(10)

    joined.send([row(1, ("a", 1, 5, 2)), row(1, ("b", 1, 5, 6))], 1)
    joined.send([row(0, ("a", 1, 12, 20)), row(0, ("b", 1, 12, 30))])
    joined.advance(12)

    assert {as_pair(each) for each in joined.emitted.rows} == {(20, 2), (30, 5)}
    assert sorted(map(number, late_of(joined, 1))) == [2, 6]
    assert joined.counters["late_records"] == 2


def test_a_row_late_before_a_snapshot_is_late_after_it() -> None:
    """With unaligned barriers, subtasks may differ in watermark at a cut."""
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON], 2
    )
    keys = [("a", n) for n in range(20)]
    joined.advance_one(0, 100)
    joined.advance_one(1, 50)
    joined.send([row(0, (*key, 70, n)) for n, key in enumerate(keys)])
    before = {number(each) for each in late_of(joined, 0)}
    joined.emitted.take()
    assert 0 < len(before) < len(keys)

    joined.restore(1)
    joined.send([row(0, (*key, 70, n)) for n, key in enumerate(keys)])

    assert {number(each) for each in late_of(joined, 0)} == before


def test_old_versions_leave_the_state_except_the_newest_of_each_key() -> None:
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON]
    )
    for now in range(0, 500, 5):
        joined.send([row(1, ("a", 1, now, now))], 1)
        joined.send([row(0, ("a", 1, now, now))])
        joined.advance(now)
        assert joined.state_rows == 1


def test_a_row_without_event_time_is_counted_and_dropped() -> None:
    joined = Subtasks(
        lambda: EventTimeTemporalJoin(ON, TIMES, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON]
    )

    joined.send([row(0, ("a", 1, 5, 1)) | {"at": None}])
    joined.advance(MAX_WATERMARK_MS)

    assert joined.emitted.rows == []
    assert joined.counters["records_without_time"] == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_temporal_join_is_exact_under_kills(seed: int) -> None:
    assert_exactly_once(priced(), INPUT, kills=seed)


def test_a_killed_run_still_finds_the_right_version_for_each_order() -> None:
    run = run_with_kills(priced(), INPUT, kills=7)

    found = {each["order"]: each["rate"] for each in run.table("out").to_pylist()}
    assert found == {n: float(n // 10 if n % 2 else n // 20) for n in range(100)}


@pytest.mark.parametrize("seed", range(2))
def test_windows_after_a_temporal_join_lose_no_row_under_kills(seed: int) -> None:
    run = run_with_kills(windowed(), INPUT, kills=seed)

    assert sum(each["orders"] for each in run.table("out").to_pylist()) == 100


def test_an_author_sees_the_join_in_the_harness() -> None:
    harness = OperatorHarness(priced(), "priced")
    harness.push([rate("EUR", 1, 0), rate("EUR", 2, 10)], port=1)
    harness.push([order(1, "EUR", 5), order(2, "EUR", 15)], port=0)
    assert harness.output() == []

    harness.watermark(START + timedelta(seconds=5))

    assert [(each["order"], each["rate"]) for each in harness.output()] == [(1, 1.0)]
    assert set(harness.state_names) == {"current", "left", "versions"}


def test_the_result_keeps_the_event_time_of_the_stream() -> None:
    orders, rates = streams()
    renamed = rates.map_batches(
        lambda batch: batch, pa.schema([*RATES][:2]).append(pa.field("at", TIME)), uid="renamed"
    ).assign_timestamps("at", uid="stamped")

    plain = orders.temporal_join(rates, on=["currency"], uid="plain")
    suffixed = orders.temporal_join(
        renamed, on=["currency"], suffixes=("_order", "_rate"), uid="suffixed"
    )
    at_once = orders.temporal_join(rates, on=["currency"], in_processing_time=True, uid="at-once")

    assert (plain.time_column, suffixed.time_column, at_once.time_column) == (
        "at",
        "at_order",
        "at",
    )
    assert not plain.is_changelog


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"how": "full"}, "'j' cannot be built: .* cannot be a full join. Choose inner or left"),
        ({"how": "lift"}, "There is no 'lift' join"),
        ({"on": ["order"]}, "There is no column 'order'"),
    ],
)
def test_what_cannot_be_joined_is_refused(options: dict[str, Any], sentence: str) -> None:
    orders, rates = streams()

    with pytest.raises(Rejected, match=sentence):
        orders.temporal_join(rates, uid="j", **{"on": ["currency"], **options})


def test_a_stream_without_event_time_is_refused_with_the_next_step() -> None:
    environment = Environment()
    orders = environment.from_rows([], ORDERS, uid="orders")
    rates = environment.from_rows([], RATES, uid="rates", timestamp_column="since")

    with pytest.raises(
        Rejected, match=r"'orders' has none\. Put assign_timestamps in front, or set"
    ):
        orders.temporal_join(rates, on=["currency"], uid="j")
    orders.temporal_join(rates, on=["currency"], in_processing_time=True, uid="at-once")


def test_the_time_of_the_table_cannot_be_a_join_column() -> None:
    environment = Environment()
    first, second = (
        environment.from_rows([], RATES, uid=uid, timestamp_column="since") for uid in "ab"
    )

    with pytest.raises(Rejected, match="'since' tells the versions of a key apart"):
        first.temporal_join(second, on=["currency", "since"], suffixes=("", "_b"), uid="j")


def test_a_changelog_is_refused_on_either_side() -> None:
    orders, rates = streams()
    top_orders = orders.key_by("currency").top_n(1, order_by="order", uid="top-orders")
    top_rates = rates.key_by("currency").top_n(1, order_by="rate", uid="top-rates")

    for left, right in ((orders, top_rates), (top_orders, rates)):
        with pytest.raises(Rejected, match="its input is a changelog"):
            left.temporal_join(right, on=["currency"], in_processing_time=True, uid="j")


def expected(due: list[Rec], versions: list[Rec], kind: JoinKind) -> list[Pair]:
    return kept([(each[3], version_of(each, versions)) for each in due], kind)


def version_of(record: Rec, versions: list[Rec]) -> int | None:
    """Returns the number of the version at the record's time; the last to arrive wins a tie."""
    if None in record[:2]:
        return None
    fitting = [
        (each[2], place, each[3])
        for place, each in enumerate(versions)
        if each[:2] == record[:2] and each[2] <= record[2]
    ]
    return max(fitting)[2] if fitting else None


def kept(pairs: list[Pair], kind: JoinKind) -> list[Pair]:
    return [pair for pair in pairs if kind is JoinKind.LEFT or pair[1] is not None]


def streams() -> tuple[Stream, Stream]:
    environment = Environment()
    orders = environment.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    rates = environment.from_rows([], RATES, uid="rates", timestamp_column="since")
    return orders, rates


def priced() -> Pipeline:
    orders, rates = streams()
    orders.temporal_join(rates, on=["currency"], uid="priced").collect(uid="out")
    return orders.environment.build()


def windowed() -> Pipeline:
    orders, rates = streams()
    priced = orders.temporal_join(rates, on=["currency"], uid="priced")
    per_window = priced.key_by("currency").window(tumbling(seconds=7))
    per_window.aggregate(orders=count_of(), uid="counted").collect(uid="out")
    return orders.environment.build()


def order(n: int, currency: str, second: int) -> Row:
    return {"order": n, "currency": currency, "at": START + timedelta(seconds=second)}


def rate(currency: str, value: float, second: int) -> Row:
    return {"currency": currency, "rate": float(value), "since": START + timedelta(seconds=second)}


INPUT = {
    "orders": [order(n, "EUR" if n % 2 else "USD", n) for n in range(100)],
    "rates": [
        *(rate("EUR", n, 10 * n) for n in range(10)),
        *(rate("USD", n, 20 * n) for n in range(5)),
    ],
}
INPUT["rates"].sort(key=lambda each: each["since"])
