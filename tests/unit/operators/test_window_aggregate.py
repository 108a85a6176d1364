"""Tumbling windows: emitted once, when due, with exactly the rows that were in time."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators import columns
from pipelines.operators.aggregating.aggregates import count, sum
from pipelines.operators.windowing.window_aggregate import WindowAggregate
from pipelines.operators.windowing.windows import TumblingWindows, tumbling
from tests.unit.operators.harness import Host, Row

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("key", pa.string()), ("time", TIME), ("x", pa.int64())])
SIZE_MS = 10
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_counted_in_its_window_or_as_late_and_windows_fire_once(seed: int) -> None:
    rng = random.Random(seed)
    host = windows()
    model: Counter[tuple[str, int]] = Counter()
    late, watermark_ms = 0, -50
    host.advance(watermark_ms)

    for _ in range(rng.randint(1, 12)):
        rows = random_rows(rng)
        host.send(rows)
        for row in rows:
            start_ms = milliseconds(row["time"]) // SIZE_MS * SIZE_MS
            if start_ms + SIZE_MS - 1 <= watermark_ms:
                late += 1
            else:
                model[str(row["key"]), start_ms] += 1
        watermark_ms += rng.randint(0, 25)
        host.advance(watermark_ms)
        if rng.random() < 0.3:
            host = host.recovered()
    host.advance(MAX_WATERMARK_MS)

    fired = [(str(row["key"]), milliseconds(row["window_start"])) for row in host.rows]
    assert len(fired) == len(set(fired))
    assert dict(zip(fired, (row["n"] for row in host.rows), strict=True)) == dict(model)
    assert host.counters.get("late_records", 0) == late
    assert host.state.statistics().rows == 0


def test_a_window_fires_at_the_watermark_of_its_last_millisecond_and_not_before() -> None:
    host = windows()
    host.send([row("a", 0)])

    host.advance(SIZE_MS - 2)
    assert host.rows == []

    host.advance(SIZE_MS - 1)
    assert host.rows == [{"key": "a", "window_start": EPOCH, "n": 1, "total": 1}]


def test_a_fired_window_accepts_no_more_rows_even_after_a_recovery() -> None:
    host = windows()
    host.send([row("a", 0)])
    host.advance(SIZE_MS - 1)

    successor = host.recovered()
    successor.send([row("a", 1), row("a", SIZE_MS)])
    successor.advance(MAX_WATERMARK_MS)

    assert [milliseconds(r["window_start"]) for r in successor.rows] == [0, SIZE_MS]
    assert successor.counters == {"late_records": 1}


def test_due_windows_are_emitted_in_window_and_key_order_not_arrival_order() -> None:
    host = windows()

    host.send([row("b", 11), row("a", 12), row("b", 1), row("a", 2)])
    host.advance(MAX_WATERMARK_MS)

    found = [(r["key"], milliseconds(r["window_start"])) for r in host.rows]
    assert found == [("a", 0), ("b", 0), ("a", 10), ("b", 10)]


def test_times_before_the_epoch_fall_into_windows_before_the_epoch() -> None:
    host = windows()

    host.send([row("a", -1)])
    host.advance(-1)

    assert [milliseconds(r["window_start"]) for r in host.rows] == [-SIZE_MS]


def test_rows_without_event_time_are_counted_and_left_out() -> None:
    host = windows()

    host.send([{"key": "a", "time": None, "x": 1}, row("a", 0)])
    host.advance(MAX_WATERMARK_MS)

    assert [r["n"] for r in host.rows] == [1]
    assert host.counters == {"records_without_time": 1}


def test_many_results_are_emitted_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_OUTPUT_ROWS", 3)
    host = windows()

    host.send([row("a", start * SIZE_MS) for start in range(7)])
    host.advance(MAX_WATERMARK_MS)

    assert [len(batch) for batch in host.emitted] == [3, 3, 1]


def test_windows_over_windows_use_the_inner_window_start_as_event_time() -> None:
    inner = windows().output_schema
    create = lambda: WindowAggregate(  # noqa: E731 - the host makes one operator per life
        ("key",), "window_start", TumblingWindows(2 * SIZE_MS), {"sum": sum("total")}
    )
    host = Host(create, [inner])

    starts = [EPOCH, EPOCH + timedelta(milliseconds=SIZE_MS)]
    host.send([{"key": "a", "window_start": start, "n": 1, "total": 5} for start in starts])
    host.advance(MAX_WATERMARK_MS)

    assert host.rows == [{"key": "a", "window_start": EPOCH, "sum": 10}]


@pytest.mark.parametrize(
    ("keys", "time_column", "sentence"),
    [
        (("missing",), "time", "no column 'missing'"),
        (("key",), "missing", "no column 'missing'"),
        (("key",), "x", "event time column 'x' is int64"),
        (("key", "window_start"), "time", "'window_start' would be produced twice"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    keys: tuple[str, ...], time_column: str, sentence: str
) -> None:
    operator = WindowAggregate(keys, time_column, TumblingWindows(SIZE_MS), {"n": count()})

    with pytest.raises(Rejected, match=sentence):
        operator.output_schema([SCHEMA])


def test_a_window_size_is_the_sum_of_its_parts_and_must_be_positive() -> None:
    assert tumbling(days=1, hours=1, minutes=1, seconds=1, milliseconds=1).size_ms == 90_061_001
    with pytest.raises(Rejected, match="must be positive"):
        tumbling()


def windows() -> Host:
    aggregates = {"n": count(), "total": sum("x")}
    return Host(
        lambda: WindowAggregate(("key",), "time", TumblingWindows(SIZE_MS), aggregates), [SCHEMA]
    )


def row(key: str, time_ms: int) -> Row:
    return {"key": key, "time": EPOCH + timedelta(milliseconds=time_ms), "x": 1}


def random_rows(rng: random.Random) -> list[Row]:
    return [row(rng.choice("ab"), rng.randint(-60, 150)) for _ in range(rng.randint(0, 15))]


def milliseconds(time: object) -> int:
    assert isinstance(time, datetime)
    return round((time - EPOCH).total_seconds() * 1_000)
