"""One operator by itself: its input, its output, and a snapshot at another parallelism."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.stream import (
    Environment,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    RowContext,
    RuntimeContext,
    ValueStateDescriptor,
    count,
    tumbling,
)
from pipelines.testing import OperatorHarness

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = pa.schema([("product", pa.string()), ("at", pa.timestamp("ms", tz="UTC"))])
COUNTED = pa.schema([("product", pa.string()), ("n", pa.int64())])


def order(product: str, second: int) -> dict[str, object]:
    return {"product": product, "at": BEGIN + timedelta(seconds=second)}


class CountedAfterAMinute(KeyedProcessFunction):
    """Emits the number of orders of a product in the minute of processing time after the first."""

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: dict, context: RowContext) -> None:
        count = self._count.value() or 0
        if not count:
            timers = context.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 60_000)
        self._count.update(count + 1)

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[dict]:
        yield {"product": context.get_current_key(), "n": self._count.value()}
        self._count.clear()


def pipeline() -> Pipeline:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    keyed = orders.key_by("product")
    keyed.window(tumbling(minutes=1)).aggregate(n=count(), uid="windows").collect(uid="a")
    keyed.process(CountedAfterAMinute(), COUNTED, uid="timed").collect(uid="b")
    return env.build()


def test_a_watermark_fires_a_window_and_late_rows_go_to_the_side_output() -> None:
    harness = OperatorHarness(pipeline(), "windows", parallelism=2)

    harness.push([order("tea", 1), order("cup", 2), order("tea", 3)])
    before = harness.output()
    harness.watermark(BEGIN + timedelta(minutes=1))
    harness.push([order("tea", 4)])

    assert before == []
    found = sorted((row["product"], row["n"]) for row in harness.output())
    assert found == [("cup", 1), ("tea", 2)]
    assert harness.output() == []
    assert [row["product"] for row in harness.side_output("late")] == ["tea"]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_a_snapshot_can_be_restored_at_another_parallelism(before: int, after: int) -> None:
    first = OperatorHarness(pipeline(), "windows", parallelism=before)
    first.push([order(product, 1) for product in "abcdefg"])

    second = OperatorHarness(pipeline(), "windows", parallelism=after, restore=first.snapshot())
    second.push([order(product, 2) for product in "abcdefg"])
    second.watermark(BEGIN + timedelta(minutes=1))

    assert sorted((row["product"], row["n"]) for row in second.output()) == [
        (product, 2) for product in "abcdefg"
    ]


def test_processing_time_advances_only_when_the_test_advances_it() -> None:
    harness = OperatorHarness(pipeline(), "timed")
    harness.push([order("tea", 1), order("tea", 2)])

    harness.pass_time(timedelta(seconds=59))
    early = harness.output()
    harness.pass_time(timedelta(seconds=1))

    assert (early, harness.output()) == ([], [{"product": "tea", "n": 2}])


def test_state_and_timers_are_read_by_name() -> None:
    harness = OperatorHarness(pipeline(), "timed")
    harness.push([order("tea", 1), order("cup", 1), order("tea", 2)])

    assert "count" in harness.state_names
    assert len(harness.state("count")) == 2
    assert len(harness.state_names) > 1, "the timers are there, too"
    with pytest.raises(Rejected, match="'timed' keeps no state 'counts'; there are: "):
        harness.state("counts")
    with pytest.raises(Rejected, match="There is no operator 'window'; there are: 'windows'"):
        OperatorHarness(pipeline(), "window")


class Priced(KeyedProcessFunction):
    """Emits each order with its broadcast price or, without one, the number of restored orders.

    The orders enter the lists only at a snapshot.
    """

    def open(self, runtime: RuntimeContext) -> None:
        self._prices = runtime.get_broadcast_state(
            MapStateDescriptor("prices", pa.string(), pa.int64())
        )
        self._own = runtime.get_operator_list_state(ListStateDescriptor("own", pa.string()))
        self._all = runtime.get_operator_union_list_state(ListStateDescriptor("all", pa.string()))
        self._seen: list[str] = []

    def initialize_state(self, runtime: RuntimeContext) -> None:
        self._restored = len(self._own.get())

    def snapshot_state(self, checkpoint_id: int) -> None:
        for state in (self._own, self._all):
            state.update(pa.array(self._seen, pa.string()))

    def process_element(self, row: dict, context: RowContext) -> Iterator[dict]:
        self._seen.append(row["product"])
        price = self._prices.get(row["product"])
        yield {"product": row["product"], "n": self._restored if price is None else price}

    def process_other_element(self, row: dict, context: RowContext) -> None:
        self._prices.put(row["product"], row["n"])


def priced() -> Pipeline:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    prices = env.from_rows([], COUNTED, uid="prices")
    both = orders.key_by("product").connect(prices.broadcast())
    both.process(Priced(), COUNTED, uid="priced").collect(uid="out")
    return env.build()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_non_keyed_state_is_restored_as_after_a_checkpoint(before: int, after: int) -> None:
    products = list("abcdefg")
    first = OperatorHarness(priced(), "priced", parallelism=before)
    first.push([{"product": product, "n": ord(product)} for product in products], port=1)
    first.push([order(product, 1) for product in products])
    first.output()

    second = OperatorHarness(priced(), "priced", parallelism=after, restore=first.snapshot())
    second.push([order(product, 2) for product in products])

    found = sorted((row["product"], row["n"]) for row in second.output())
    assert found == [(product, ord(product)) for product in products], "every subtask has prices"
    assert len(second.state("operator.prices")) == after * len(products)
    assert sorted(row["own"] for row in second.state("operator.own")) == products
    assert sorted(row["all"] for row in second.state("operator.all")) == sorted(products * after)


def test_the_harness_calls_the_snapshot_and_restore_hooks_of_a_function() -> None:
    first = OperatorHarness(priced(), "priced")
    first.push([order("tea", 1)])

    assert first.state("operator.own") == [], "to look is no snapshot"
    second = OperatorHarness(priced(), "priced", restore=first.snapshot())
    second.push([order("cup", 2)])

    assert first.output() == [{"product": "tea", "n": 0}]
    assert second.output() == [{"product": "cup", "n": 1}]
