"""Asynchronous functions: order, event time, snapshots with requests in flight, failures."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from pipelines.connectors.in_process import BlackHole
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.stream import AsyncFunction, Environment, Pipeline
from pipelines.testing import OperatorHarness, OperatorSnapshot

SCHEMA = pa.schema([("x", pa.int64())])
ANSWERS = pa.schema([("x", pa.int64()), ("y", pa.int64())])


class Service:
    """Holds each request until `allow` names its row."""

    def __init__(self) -> None:
        self._gates: dict[int, threading.Event] = {}
        self.asked: list[int] = []
        self.under_way = self.most_under_way = 0

    def __deepcopy__(self, memo: object) -> "Service":
        return self

    def gate(self, x: int) -> threading.Event:
        return self._gates.setdefault(x, threading.Event())

    def allow(self, *rows: int) -> None:
        for x in rows:
            self.gate(x).set()

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(row["x"])
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.to_thread(self.gate(row["x"]).wait)
        self.under_way -= 1
        return {**row, "y": row["x"] * 10}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_waits_for_the_results_of_earlier_rows(ordered: bool) -> None:
    service = Service()
    with hosted(service, ordered=ordered) as harness:
        harness.push([{"x": 1}])
        harness.watermark(5)
        harness.push([{"x": 2}])
        service.allow(2)
        assert (harness.output(), harness.watermark_ms) == ([], MIN_WATERMARK_MS)

        service.allow(1)
        harness.await_results()

        assert [row["y"] for row in harness.output()] == [10, 20]
        assert harness.watermark_ms == 5


def test_requests_in_flight_are_snapshotted_and_repeated_after_a_restore() -> None:
    service, again = Service(), Service()
    with hosted(service, capacity=2) as harness:
        harness.push([{"x": x} for x in range(5)])
        harness.watermark(7)
        snapshot = harness.snapshot()
        service.allow(*range(5))
        harness.await_results()
    again.allow(*range(5))

    with hosted(again, restore=snapshot) as restored:
        assert restored.watermark_ms == MIN_WATERMARK_MS
        restored.push([{"x": 5}])
        again.allow(5)
        restored.await_results()

        assert [row["y"] for row in restored.output()] == [0, 10, 20, 30, 40, 50]
        assert restored.state_names == ["operator.in_flight"]
        assert restored.state("operator.in_flight") == []


def test_a_result_emitted_before_the_snapshot_is_not_requested_again() -> None:
    service, again = Service(), Service()
    with hosted(service, ordered=False) as harness:
        harness.push([{"x": 1}, {"x": 2}, {"x": 3}])
        service.allow(2)
        harness.await_output()
        assert [row["x"] for row in harness.output()] == [2]
        snapshot = harness.snapshot()
        service.allow(1, 3)
        harness.await_results()
    again.allow(1, 2, 3)

    with hosted(again, restore=snapshot) as restored:
        restored.await_results()

        assert sorted(again.asked) == [1, 3]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_restore_distributes_requests_over_any_number_of_subtasks(parallelism: int) -> None:
    service, again = Service(), Service()
    with hosted(service, parallelism=2) as harness:
        harness.push([{"x": x} for x in range(10)])
        snapshot = harness.snapshot()
        service.allow(*range(10))
        harness.await_results()
    again.allow(*range(10))

    with hosted(again, restore=snapshot, parallelism=parallelism) as restored:
        restored.await_results()

        assert sorted(row["x"] for row in restored.output()) == list(range(10))


def test_no_more_requests_than_the_capacity_are_in_flight_and_they_keep_order() -> None:
    service = Service()
    with hosted(service, capacity=3) as harness:
        harness.push([{"x": x} for x in range(10)])
        service.allow(*range(10))
        harness.await_results()

        assert service.asked == list(range(10))
        assert service.most_under_way == 3
        assert len(harness.output()) == 10


def test_a_request_without_an_answer_names_its_row() -> None:
    with hosted(never, timeout=timedelta(milliseconds=1)) as harness:
        harness.push([{"x": 7}])

        with pytest.raises(TimeoutError, match=r"no answer within 0.001 s for the row {'x': 7}"):
            harness.await_results()


def test_a_function_may_supply_the_result_of_a_timed_out_request() -> None:
    def unknown(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "y": None}

    with hosted(never, timeout=timedelta(milliseconds=1), timed_out=unknown) as harness:
        harness.push([{"x": 7}])
        harness.await_results()

        assert harness.output() == [{"x": 7, "y": None}]


@pytest.mark.parametrize(("retries", "succeeds"), [(1, False), (2, True)])
def test_a_failed_request_is_retried_the_configured_number_of_times(
    retries: int, succeeds: bool
) -> None:
    attempts: list[int] = []

    async def fails_twice(row: dict[str, Any]) -> dict[str, Any]:
        attempts.append(row["x"])
        if len(attempts) < 3:
            raise ConnectionError("try again")
        return {**row, "y": 0}

    delay = timedelta(microseconds=1)
    with hosted(fails_twice, retries=retries, retry_delay=delay) as harness:
        harness.push([{"x": 1}])
        if succeeds:
            harness.await_results()
        else:
            with pytest.raises(ConnectionError, match="try again"):
                harness.await_results()

    assert len(attempts) == retries + 1


def test_other_errors_are_not_retried() -> None:
    attempts: list[int] = []

    async def fails(row: dict[str, Any]) -> dict[str, Any]:
        attempts.append(row["x"])
        raise ValueError("wrong")

    with hosted(fails, retries=5, retry_on=(ConnectionError,)) as harness:
        harness.push([{"x": 1}])
        with pytest.raises(ValueError, match="wrong"):
            harness.await_results()

    assert attempts == [1]


class WithClient(AsyncFunction):
    """All copies share the log."""

    log: ClassVar[list[str]] = []

    async def open(self) -> None:
        self.log.append(f"open {threading.current_thread().name}")

    async def invoke(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "y": 1}

    async def close(self) -> None:
        self.log.append("close")


def test_a_client_is_opened_and_closed_once_on_the_loop() -> None:
    WithClient.log.clear()
    with hosted(WithClient()) as harness:
        harness.push([{"x": x} for x in range(3)])
        harness.await_results()

    assert WithClient.log == ["open requests of asked[0]", "close"]


def test_a_whole_batch_is_asked_at_once_and_again_after_a_restore() -> None:
    async def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [{"x": x, "y": 2 * x} for x in batch.column("x").to_pylist() if x], schema=ANSWERS
        )

    environment = Environment()
    rows = environment.from_rows([], SCHEMA, uid="rows")
    rows.map_batches_async(doubled, ANSWERS, uid="asked").sink(BlackHole(), uid="out")
    harness = OperatorHarness(environment.build(), "asked")
    harness.push([{"x": x} for x in range(3)])
    snapshot = harness.snapshot()
    harness.await_results()
    harness.close()

    assert harness.output() == [{"x": 1, "y": 2}, {"x": 2, "y": 4}]
    restored = OperatorHarness(environment.build(), "asked", restore=snapshot)
    restored.await_results()
    restored.close()
    assert restored.output() == [{"x": 1, "y": 2}, {"x": 2, "y": 4}]


def test_a_row_with_other_columns_is_refused() -> None:
    async def wrong(row: dict[str, Any]) -> dict[str, Any]:
        return {"z": 1}

    with hosted(wrong) as harness:
        harness.push([{"x": 1}])

        with pytest.raises(Rejected, match=r"emitted a row with the columns \(z\)"):
            harness.await_results()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"capacity": 0}, "A capacity of 0 asks nothing"),
        ({"timeout": timedelta(0)}, "leaves no time"),
        ({"retries": -1}, "Neither retries"),
    ],
)
def test_a_wrong_option_is_refused_when_the_pipeline_is_built(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Rejected, match=f"'asked' cannot be built: .*{sentence}"):
        asking(never, **options)


def test_a_function_that_would_block_is_refused() -> None:
    def blocking(row: dict[str, Any]) -> Any:
        return row

    with pytest.raises(Rejected, match="write `async def`"):
        asking(blocking)


def test_a_coroutine_with_bound_arguments_is_accepted() -> None:
    async def plus(row: dict[str, Any], *, more: int) -> dict[str, Any]:
        return {**row, "y": row["x"] + more}

    with hosted(partial(plus, more=3)) as harness:
        harness.push([{"x": 1}])
        harness.await_results()

        assert harness.output() == [{"x": 1, "y": 4}]


async def never(row: dict[str, Any]) -> dict[str, Any]:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def asking(function: Callable[[Any], Awaitable[Any]] | AsyncFunction, **options: Any) -> Pipeline:
    environment = Environment()
    rows = environment.from_rows([], SCHEMA, uid="rows")
    rows.map_async(function, ANSWERS, uid="asked", **options).sink(BlackHole(), uid="out")
    return environment.build()


@contextmanager
def hosted(
    function: Callable[[Any], Awaitable[Any]] | AsyncFunction,
    *,
    restore: OperatorSnapshot | None = None,
    parallelism: int = 1,
    **options: Any,
) -> Iterator[OperatorHarness]:
    pipeline = asking(function, **options)
    harness = OperatorHarness(pipeline, "asked", restore=restore, parallelism=parallelism)
    try:
        yield harness
    finally:
        harness.close()
