"""The listener on a real query: it reports what happens, and no dashboard stops the query."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from ftdash_listener import listener as own_listener
from ftdash_listener import sending, watch
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import QueryProgressEvent

from ftdash.watching.progress import Kind, understood
from ftdash.watching.query_status import QueryState, QueryStatus
from tests.listener_dashboard import Dashboard
from tests.polling import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.05)
    monkeypatch.setattr(sending, "PAUSE_MAX_S", 0.1)
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.5)


@pytest.fixture
def dashboard() -> Dashboard:
    """A dashboard with a known port, which is not up yet."""
    found = Dashboard()
    with found.serving():
        pass
    return found


def started(spark: SparkSession, directory: Path, *, name: str) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    counted = rows.groupBy((sf.col("value") % 7).alias("key")).count()
    writer = counted.writeStream.outputMode("update").format("noop").queryName(name)
    return writer.option("checkpointLocation", str(directory)).start()


def test_a_query_continues_while_its_dashboard_is_killed_hangs_or_fails(
    spark: SparkSession, dashboard: Dashboard, tmp_path: Path
) -> None:
    listener = watch(spark, dashboard.url, "ftd_x")
    query = started(spark, tmp_path / "checkpoint", name="orders")
    try:
        goes_on(query)  # no server listens at that port
        with dashboard.serving():
            for status in (None, 500, 200):
                dashboard.status = status
                asked = dashboard.asked
                wait_until(lambda asked=asked: dashboard.asked > asked)
                goes_on(query)
            wait_until(lambda: kinds(dashboard) >= {"started", "progress"})
            query.stop()
            wait_until(lambda: "terminated" in kinds(dashboard))
        assert query.exception() is None
        assert_understood(dashboard, query, QueryState.FINISHED)
        assert listener.reporter.statistics().dropped == 0
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_the_exception_of_a_query_that_fails_is_reported_with_its_class(
    spark: SparkSession, dashboard: Dashboard, tmp_path: Path
) -> None:
    listener = watch(spark, dashboard.url, "ftd_x")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    bad = rows.select(sf.expr("assert_true(value < 12)"))
    with dashboard.serving():
        query = (
            bad.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        wait_until(lambda: "terminated" in kinds(dashboard))
        spark.streams.removeListener(listener)

    (end,) = [each for each in dashboard.events if each["kind"] == "terminated"]
    assert "value < 12" in end["exception"]
    assert end["errorClass"]
    assert_understood(dashboard, query, QueryState.FAILED)


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_progress_is_copied_field_by_field_only_as_a_last_resort(
    spark: SparkSession,
    dashboard: Dashboard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_direct: bool,
) -> None:
    copied = []
    copy = QueryProgressEvent.fromJObject

    def counted(event: object) -> object:
        copied.append(event)
        return copy(event)

    monkeypatch.setattr(QueryProgressEvent, "fromJObject", counted)
    if not is_direct:
        monkeypatch.delattr(own_listener, "_in_the_jvm")  # as if pyspark had no such class
    listener = watch(spark, dashboard.url, "ftd_x")
    with dashboard.serving():
        query = started(spark, tmp_path / "checkpoint", name="orders")
        try:
            wait_until(lambda: "progress" in kinds(dashboard))
        finally:
            query.stop()
            spark.streams.removeListener(listener)

    assert bool(copied) is not is_direct


def test_a_wrong_address_stops_no_job(spark: SparkSession, tmp_path: Path) -> None:
    listener = watch(spark, "no address at all", "ftd_x")
    query = started(spark, tmp_path / "checkpoint", name="elsewhere")
    try:
        goes_on(query)
        assert query.exception() is None
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def goes_on(query: StreamingQuery) -> None:
    """Waits until the query has made three more batches."""
    before = newest_batch(query)
    wait_until(lambda: newest_batch(query) >= before + 3)
    assert query.isActive


def newest_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def kinds(dashboard: Dashboard) -> set[str]:
    return {event["kind"] for event in dashboard.events}


def assert_understood(dashboard: Dashboard, query: StreamingQuery, state: QueryState) -> None:
    """Checks the events with the dashboard's own reading of them."""
    now = datetime.now(UTC)
    told, problems = understood(dashboard.events, now)
    assert problems == []
    assert {each.query_id for each in told} == {str(query.id)}
    status = QueryStatus()
    for each in told:
        status = status.after(each)
    assert status.state(now) is state
    batches = [each.batch for each in told if each.kind is Kind.PROGRESS and each.batch]
    assert batches
    assert {each.batch_id for each in batches} == set(range(len(batches)))
    assert all(each.phases_ms["addBatch"] >= 0 for each in batches)
