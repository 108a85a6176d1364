"""User metrics: kept per subtask, bounded, in no snapshot, and never in the function's way."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.events import MetricKind, MetricSample, MetricSpread, SubtaskSample
from pipelines.domain.ids import Uid
from pipelines.operators.user_metrics import HISTOGRAM_VALUES, METRICS_MAX, OperatorMetrics
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    KeyedProcessFunction,
    Pipeline,
    ProcessContext,
    RowContext,
    RuntimeContext,
)
from pipelines.testing import OperatorHarness

ORDERS = pa.schema([("product", pa.string()), ("price", pa.int64())])
UID = Uid("function")


class RowPrices(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        self._seen = runtime.metrics.counter("seen")
        self._prices = runtime.metrics.histogram("prices")
        self._last = 0
        runtime.metrics.gauge("last", lambda: self._last)

    def process_element(self, row: dict[str, Any], context: RowContext) -> None:
        self._seen.inc()
        self._prices.update(row["price"])
        self._last = row["price"]
        if row["price"] > 5:
            context.metrics.counter("dear").inc()


class BatchPrices(BatchProcessFunction):
    def open(self, context: ProcessContext) -> None:
        self._seen = context.metrics.counter("seen")
        self._prices = context.metrics.histogram("prices")
        self._last = 0
        context.metrics.gauge("last", lambda: self._last)

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        prices = batch.column("price").to_pylist()
        self._seen.inc(len(prices))
        self._prices.update_all(prices)
        self._last = prices[-1]
        dear = sum(price > 5 for price in prices)
        if dear:
            context.metrics.counter("dear").inc(dear)


def hosted(function: BatchProcessFunction | KeyedProcessFunction) -> Pipeline:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders").key_by("product")
    orders.process(function, ORDERS, uid=UID).collect(uid="sink")
    return env.build()


@pytest.mark.parametrize("function", [RowPrices, BatchPrices])
def test_each_subtask_has_its_own_metrics_and_snapshots_leave_them_out(
    function: Callable[[], BatchProcessFunction | KeyedProcessFunction],
) -> None:
    harness = OperatorHarness(hosted(function()), UID, parallelism=2)
    harness.push([{"product": "abcdefgh"[n], "price": n} for n in range(8)])

    seen, prices = harness.metric("seen"), harness.metric("prices")

    assert sum(value_of(each) for each in seen) == 8
    assert all(value_of(each) > 0 for each in seen)
    assert [value_of(each) for each in prices] == [value_of(each) for each in seen]
    spreads = [each.spread for each in prices if each.spread is not None]
    assert min(each.least for each in spreads) == 0
    assert max(each.most for each in spreads) == 7
    assert max(value_of(each) for each in harness.metric("last")) == 7
    assert sum(value_of(each) for each in harness.metric("dear")) == 2

    restored = OperatorHarness(hosted(function()), UID, restore=harness.snapshot())

    assert [each.value for each in restored.metric("seen")] == [0]
    with pytest.raises(Rejected, match="keeps no metric 'dear'; there are: 'last', 'prices'"):
        restored.metric("dear")


def test_asking_again_gives_the_same_metric() -> None:
    metrics = OperatorMetrics()

    metrics.counter("n").inc(3)
    metrics.counter("n").dec()
    metrics.histogram("h").update(1)
    metrics.histogram("h").update(2)

    assert [(each.name, each.value) for each in metrics.samples(UID)] == [("n", 2), ("h", 2)]


@pytest.mark.parametrize("name", ["", "1st", "a b", "a/b", "x" * 81, "a\n", 7])
def test_an_invalid_metric_name_is_refused(name: Any) -> None:
    with pytest.raises(Rejected, match="A metric cannot be named"):
        OperatorMetrics().counter(name)


def test_the_number_of_metric_names_is_bounded() -> None:
    metrics = OperatorMetrics()
    for number in range(METRICS_MAX):
        metrics.counter(f"key-{number}")

    with pytest.raises(Rejected, match=r"'key-more' is one more\. Do not make names from data"):
        metrics.counter("key-more")
    metrics.counter("key-0").inc()

    assert len(metrics.samples(UID)) == METRICS_MAX


def test_one_name_is_one_metric_of_one_kind() -> None:
    metrics = OperatorMetrics()
    metrics.counter("n")
    metrics.gauge("g", lambda: 1)

    with pytest.raises(Rejected, match="'n' is a counter; give the histogram another name"):
        metrics.histogram("n")
    with pytest.raises(Rejected, match="a metric 'n' already; give the gauge another name"):
        metrics.gauge("n", lambda: 2)
    with pytest.raises(Rejected, match="'g' is a gauge"):
        metrics.counter("g")


def failing() -> float:
    raise KeyError("first")


@pytest.mark.parametrize(
    ("read", "value", "problem"),
    [
        (lambda: 3, 3, ""),
        (lambda: True, 1, ""),
        (lambda: 2**60 + 1, 2**60 + 1, ""),
        (lambda: np.int64(4), 4, ""),
        (lambda: np.float32(0.5), 0.5, ""),
        (lambda: Fraction(1, 4), 0.25, ""),
        (lambda: math.nan, None, "nan is not finite"),
        (lambda: math.inf, None, "inf is not finite"),
        (lambda: None, None, "NoneType is no number"),
        (lambda: "many", None, "str is no number"),
        (failing, None, "KeyError: 'first'"),
    ],
)
def test_a_gauge_gives_a_number_or_the_reason_why_not(
    read: Callable[[], Any], value: float | None, problem: str
) -> None:
    metrics = OperatorMetrics()
    metrics.gauge("g", read)

    (told,) = metrics.samples(UID)

    assert (told.value, told.problem) == (value, problem)
    assert msgspec.json.decode(msgspec.json.encode(told), type=MetricSample) == told


def test_a_counter_of_numpy_integers_can_be_encoded() -> None:
    metrics = OperatorMetrics()
    metrics.counter("n").inc(np.int64(5))  # type: ignore[arg-type]

    (told,) = metrics.samples(UID)

    assert msgspec.json.decode(msgspec.json.encode(told), type=MetricSample) == told
    assert told.value == 5


def test_a_histogram_describes_its_newest_values() -> None:
    metrics = OperatorMetrics()
    histogram = metrics.histogram("h")
    histogram.update_all([1e6] * 50)
    histogram.update_all(range(HISTOGRAM_VALUES))

    (told,) = metrics.samples(UID)

    assert told.value == HISTOGRAM_VALUES + 50
    assert told.spread == MetricSpread(
        least=0, most=999, mean=499.5, p50=499.5, p95=949.05, p99=989.01
    )


def test_a_histogram_leaves_out_and_reports_values_that_are_not_finite() -> None:
    metrics = OperatorMetrics()
    metrics.histogram("none")
    metrics.histogram("h").update_all([1.0, math.nan, math.inf, 3.0])
    metrics.histogram("words").update("many")  # type: ignore[arg-type]

    empty, mixed, words = metrics.samples(UID)

    assert (empty.value, empty.spread, empty.problem) == (0, None, "")
    assert mixed.spread is not None
    assert (mixed.value, mixed.spread.least, mixed.spread.most) == (4, 1, 3)
    assert mixed.problem == "2 of the newest 4 values are not finite"
    assert (words.spread, words.problem.partition(":")[0]) == (None, "a value is no number")


def test_a_sample_of_an_older_version_has_no_metrics() -> None:
    older = (
        '{"vertex":"a","subtask":0,"records_in":1,"records_out":1,"busy_ratio":0,"queued_bytes":0,'
        '"backpressured_ratio":0,"idle_ratio":1,"watermark_ms":null,"queued_records":0,'
        '"state_bytes":0}'
    )

    assert msgspec.json.decode(older, type=SubtaskSample).metrics == []


def value_of(sample: MetricSample) -> float:
    assert sample.kind in MetricKind
    assert sample.value is not None
    return sample.value
