"""All windows compared with plain Python, over random rows, watermarks, cuts and parallelisms."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.aggregating.aggregates import count
from pipelines.operators.aggregating.aggregates import max as largest_of
from pipelines.operators.aggregating.aggregates import sum as total_of
from pipelines.operators.operator import Operator
from pipelines.operators.windowing.sessions import SessionAggregate, SessionRows
from pipelines.operators.windowing.window_aggregate import TimeWindow, WindowAggregate, WindowRows
from pipelines.operators.windowing.windows import (
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    session,
    sliding,
)
from pipelines.state.backend import BackendFactory
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import MAX_PARALLELISM, Row
from tests.unit.operators.subtasks import Subtasks
from tests.unit.operators.window_oracle import AlignedOracle, Result, SessionOracle

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("key", pa.string()), ("time", TIME), ("x", pa.int64())])
LISTED = pa.schema(
    [("key", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("xs", pa.list_(pa.int64()))]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AGGREGATES = {"n": count(), "total": total_of("x"), "largest": largest_of("x")}
Oracle = AlignedOracle | SessionOracle


@pytest.mark.parametrize("seed", range(30))
def test_sliding_aggregates_match_plain_python(seed: int) -> None:
    rng = random.Random(seed)
    size, every, lateness = random_sliding(rng)
    windows = SlidingWindows(size, every_ms=every)

    compare(
        rng,
        lambda: WindowAggregate(("key",), "time", windows, AGGREGATES, lateness),
        AlignedOracle(size, every, lateness, -100),
        as_summary,
        summarized,
    )


@pytest.mark.parametrize("seed", range(25))
def test_tumbling_aggregates_with_lateness_match_plain_python(seed: int) -> None:
    rng = random.Random(seed)
    size, lateness = rng.randint(1, 20), rng.randint(0, 30)

    compare(
        rng,
        lambda: WindowAggregate(("key",), "time", TumblingWindows(size), AGGREGATES, lateness),
        AlignedOracle(size, size, lateness, -100),
        lambda row: as_summary({**row, "window_end": row["window_start"] + ms(size)}),
        summarized,
    )


@pytest.mark.parametrize("seed", range(30))
def test_session_aggregates_match_plain_python(seed: int) -> None:
    rng = random.Random(seed)
    gap, lateness = rng.randint(1, 25), rng.choice([0, 0, rng.randint(1, 40)])

    compare(
        rng,
        lambda: SessionAggregate(("key",), "time", SessionWindows(gap), AGGREGATES, lateness),
        SessionOracle(gap, lateness, -100),
        as_summary,
        summarized,
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_function_gets_exactly_the_rows_of_each_sliding_window(seed: int) -> None:
    rng = random.Random(seed)
    size, every, lateness = random_sliding(rng)
    windows = SlidingWindows(size, every_ms=every)

    compare(
        rng,
        lambda: WindowRows(("key",), "time", windows, listed, LISTED, lateness),
        AlignedOracle(size, every, lateness, -100),
        as_result,
        lambda result: result,
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_function_gets_exactly_the_rows_of_each_session(seed: int) -> None:
    rng = random.Random(seed)
    gap, lateness = rng.randint(1, 25), rng.choice([0, 0, rng.randint(1, 40)])

    compare(
        rng,
        lambda: SessionRows(("key",), "time", SessionWindows(gap), listed, LISTED, lateness),
        SessionOracle(gap, lateness, -100),
        as_result,
        lambda result: result,
    )


@pytest.mark.parametrize("seed", range(50))
def test_no_key_sees_time_go_back_after_a_restore_of_uneven_watermarks(
    seed: int,
) -> None:
    """Each key has its own oracle, which follows the watermark of the subtask that owns the key."""
    rng = random.Random(seed)
    create, oracle = random_operator(rng)
    oracles = {key: oracle(-100) for key in "abcdef"}
    subtasks = Subtasks(create, [SCHEMA], [("key",)], rng.randint(2, 4), -100)
    subtasks.advance(-100)
    now = -80

    for _ in range(rng.randint(3, 10)):
        rows = [
            (rng.choice("abcdef"), now + rng.randint(-60, 60), rng.randint(-9, 9))
            for _ in range(rng.randint(1, 15))
        ]
        subtasks.send([row(*each) for each in rows])
        expected = [r for key, one in oracles.items() for r in one.add(of_key(rows, key))]
        late = subtasks.emitted.sides.get("late", [])
        assert sorted(r["x"] for r in late) == sorted(r[2] for r in late_of(oracles))
        assert sorted(map(as_result, subtasks.emitted.take())) == sorted(expected)

        now += rng.choice([0, rng.randint(0, 30)])
        for subtask in range(len(subtasks.watermarks_ms)):
            watermark = max(subtasks.watermarks_ms[subtask], now + rng.randint(-40, 40))
            subtasks.advance_one(subtask, watermark)
            expected = [
                result
                for key, one in oracles.items()
                if subtasks.owner_of(group_of(key)) == subtask
                for result in one.advance(max(one.watermark, watermark))
            ]
            assert sorted(map(as_result, subtasks.emitted.take())) == sorted(expected)
        if rng.random() < 0.5:
            subtasks.restore(rng.randint(1, 5))
    subtasks.advance(MAX_WATERMARK_MS)

    expected = [r for one in oracles.values() for r in one.advance(MAX_WATERMARK_MS)]
    assert sorted(map(as_result, subtasks.emitted.take())) == sorted(expected)
    assert subtasks.state_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_windows_are_the_same_when_state_is_in_rocksdb(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    gap, size, every, lateness = 12, 15, 4, rng.choice([0, 20])
    sessions, windows = SessionWindows(gap), SlidingWindows(size, every_ms=every)
    whole: list[tuple[Callable[[], Operator], Oracle]] = [
        (
            lambda: SessionRows(("key",), "time", sessions, listed, LISTED, lateness),
            SessionOracle(gap, lateness, -100),
        ),
        (
            lambda: WindowRows(("key",), "time", windows, listed, LISTED, lateness),
            AlignedOracle(size, every, lateness, -100),
        ),
    ]
    summed: list[tuple[Callable[[], Operator], Oracle]] = [
        (
            lambda: SessionAggregate(("key",), "time", sessions, AGGREGATES, lateness),
            SessionOracle(gap, lateness, -100),
        ),
        (
            lambda: WindowAggregate(("key",), "time", windows, AGGREGATES, lateness),
            AlignedOracle(size, every, lateness, -100),
        ),
    ]

    with rocksdb_backends(TINY_BYTES) as backends:
        for create, oracle in whole:
            compare(rng, create, oracle, as_result, lambda result: result, backends)
        for create, oracle in summed:
            compare(rng, create, oracle, as_summary, summarized, backends)


def test_a_session_ends_only_when_the_gap_after_its_last_row_has_passed() -> None:
    subtasks = sessions_of(gap=10)
    subtasks.send([row("a", 0), row("a", 10), row("b", 11)])

    subtasks.advance(18)
    assert subtasks.emitted.rows == []

    subtasks.advance(19)
    assert [as_summary(r)[:4] for r in subtasks.emitted.rows] == [("a", 0, 20, 2)]
    assert [r["window_time"] for r in subtasks.emitted.rows] == [EPOCH + ms(19)]


@pytest.mark.parametrize("times", [(10, 30), (30, 10)])
def test_a_row_between_two_sessions_merges_them_whichever_came_first(
    times: tuple[int, int],
) -> None:
    subtasks = sessions_of(gap=10)
    for time in times:
        subtasks.send([row("a", time)])
    subtasks.advance(15)

    subtasks.send([row("a", 20)])
    subtasks.advance(MAX_WATERMARK_MS)

    assert [as_summary(r)[:4] for r in subtasks.emitted.rows] == [("a", 10, 40, 3)]


def test_a_long_open_session_keeps_few_rows_of_state_and_accepts_old_rows() -> None:
    subtasks = sessions_of(gap=10)
    for time in range(0, 1_000, 7):
        subtasks.send([row("a", time)])
        subtasks.advance(time - 1)
    assert subtasks.state_rows <= 3

    subtasks.send([row("a", 500), row("b", 500)])  # older than the gap: alone it would be late
    subtasks.advance(MAX_WATERMARK_MS)

    assert [as_summary(r)[:4] for r in subtasks.emitted.rows] == [("a", 0, 1_004, 144)]
    assert subtasks.counters == {"late_records": 1}


def test_rows_in_the_gap_between_windows_are_counted() -> None:
    windows = SlidingWindows(5, every_ms=10)
    subtasks = Subtasks(
        lambda: WindowAggregate(("key",), "time", windows, AGGREGATES), [SCHEMA], [("key",)]
    )

    subtasks.send([row("a", 4), row("a", 5), row("a", 9)])
    subtasks.advance(MAX_WATERMARK_MS)

    assert [as_summary(r)[:4] for r in subtasks.emitted.rows] == [("a", 0, 5, 1)]
    assert subtasks.counters == {"records_outside_windows": 2}


def test_an_offset_moves_the_windows() -> None:
    windows = sliding(
        timedelta(milliseconds=10),
        every=timedelta(milliseconds=5),
        offset=timedelta(milliseconds=2),
    )
    subtasks = Subtasks(
        lambda: WindowAggregate(("key",), "time", windows, AGGREGATES), [SCHEMA], [("key",)]
    )

    subtasks.send([row("a", 1)])
    subtasks.advance(MAX_WATERMARK_MS)

    assert [as_summary(r)[1:3] for r in subtasks.emitted.rows] == [(-8, 2), (-3, 7)]


def test_the_event_time_of_a_sliding_window_is_its_last_millisecond() -> None:
    windows = SlidingWindows(10, every_ms=5)
    subtasks = Subtasks(
        lambda: WindowAggregate(("key",), "time", windows, AGGREGATES), [SCHEMA], [("key",)]
    )

    subtasks.send([row("a", 1)])
    subtasks.advance(MAX_WATERMARK_MS)

    assert [as_summary(r)[1:3] for r in subtasks.emitted.rows] == [(-5, 5), (0, 10)]
    assert [r["window_time"] for r in subtasks.emitted.rows] == [EPOCH + ms(4), EPOCH + ms(9)]


def test_windows_without_length_are_refused() -> None:
    with pytest.raises(Rejected, match="A session's gap of 0 ms"):
        session()
    with pytest.raises(Rejected, match="A slide of 0 ms"):
        sliding(timedelta(hours=1), every=timedelta())


@pytest.mark.parametrize("taken", ["window_end", "window_time"])
def test_an_aggregate_may_not_take_the_name_of_a_window_bound(taken: str) -> None:
    for operator in (
        SessionAggregate(("key",), "time", SessionWindows(1), {taken: count()}),
        WindowAggregate(("key",), "time", SlidingWindows(2, every_ms=1), {taken: count()}),
    ):
        with pytest.raises(Rejected, match=f"'{taken}' would be produced twice"):
            operator.output_schema([SCHEMA])


def compare(
    rng: random.Random,
    create: Callable[[], Operator],
    oracle: Oracle,
    read: Callable[[Row], tuple[object, ...]],
    expected: Callable[[Result], tuple[object, ...]],
    backends: BackendFactory = HashMapBackend,
) -> None:
    """Checks output and late rows after each step, and that no state is left at the end."""
    subtasks = Subtasks(
        create,
        [SCHEMA],
        [("key",)],
        rng.randint(1, 3),
        oracle.watermark,
        backends=backends,
    )
    subtasks.advance(oracle.watermark)
    for watermark in [*random_watermarks(rng), MAX_WATERMARK_MS]:
        rows = random_rows(rng, oracle.watermark)
        subtasks.send([row(*each) for each in rows])
        if rng.random() < 0.3:
            subtasks.restore(rng.randint(1, 4))
        results = oracle.add(rows)
        assert sorted(map(read, subtasks.emitted.rows)) == sorted(map(expected, results))
        late = subtasks.emitted.sides.get("late", [])
        assert sorted((r["key"], time_of(r["time"]), r["x"]) for r in late) == sorted(oracle.late)
        oracle.late = []
        subtasks.emitted.take()

        subtasks.advance(watermark)
        results = oracle.advance(watermark)
        assert sorted(map(read, subtasks.emitted.rows)) == sorted(map(expected, results))
        subtasks.emitted.take()
        if rng.random() < 0.3:
            subtasks.restore(rng.randint(1, 4))
    assert subtasks.state_rows == 0


def random_operator(
    rng: random.Random,
) -> tuple[Callable[[], Operator], Callable[[int], Oracle]]:
    """Returns an operator of a random kind whose results list their values, and its oracle."""
    if rng.random() < 0.5:
        gap, lateness = rng.randint(1, 25), rng.choice([0, rng.randint(1, 40)])
        sessions = SessionWindows(gap)
        return (
            lambda: SessionRows(("key",), "time", sessions, listed, LISTED, lateness),
            lambda watermark: SessionOracle(gap, lateness, watermark),
        )
    size, every, lateness = random_sliding(rng)
    windows = SlidingWindows(size, every_ms=every)
    return (
        lambda: WindowRows(("key",), "time", windows, listed, LISTED, lateness),
        lambda watermark: AlignedOracle(size, every, lateness, watermark),
    )


def of_key(rows: list[tuple[str, int, int]], key: str) -> list[tuple[str, int, int]]:
    return [each for each in rows if each[0] == key]


def late_of(oracles: dict[str, Oracle]) -> list[tuple[str, int, int]]:
    late = [each for oracle in oracles.values() for each in oracle.late]
    for oracle in oracles.values():
        oracle.late = []
    return late


def group_of(key: str) -> int:
    batch = pa.RecordBatch.from_pylist([row(key, 0)], schema=SCHEMA)
    (group,) = key_groups(key_hashes(batch, ("key",)), MAX_PARALLELISM)
    return int(group)


def sessions_of(gap: int) -> Subtasks:
    return Subtasks(
        lambda: SessionAggregate(("key",), "time", SessionWindows(gap), AGGREGATES),
        [SCHEMA],
        [("key",)],
    )


def random_sliding(rng: random.Random) -> tuple[int, int, int]:
    """Returns size, slide and lateness; the slide need not divide the size and may exceed it."""
    return rng.randint(1, 24), rng.randint(1, 12), rng.choice([0, 0, rng.randint(1, 30)])


def random_watermarks(rng: random.Random) -> list[int]:
    """Returns watermarks whose steps have any length, including zero."""
    watermarks, now = [], -80
    for _ in range(rng.randint(2, 10)):
        now += rng.choice([0, rng.randint(0, 8), rng.randint(0, 40)])
        watermarks.append(now)
    return watermarks


def random_rows(rng: random.Random, watermark: int) -> list[tuple[str, int, int]]:
    """Returns rows with times up to 60 ms before or after the watermark."""
    return [
        (rng.choice("abc"), watermark + rng.randint(-60, 60), rng.randint(-9, 9))
        for _ in range(rng.choice([0, 1, rng.randint(1, 20)]))
    ]


def listed(window: TimeWindow, rows: pa.RecordBatch) -> pa.RecordBatch:
    xs = sorted(rows.column("x").to_pylist())
    (key,) = set(rows.column("key").to_pylist())
    return pa.RecordBatch.from_pylist(
        [{"key": key, "start": window.start_ms, "end": window.end_ms, "xs": xs}], schema=LISTED
    )


def row(key: str, time: int, x: int = 1) -> Row:
    return {"key": key, "time": EPOCH + ms(time), "x": x}


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def time_of(time: object) -> int:
    assert isinstance(time, datetime)
    return (time - EPOCH) // ms(1)


def as_summary(row: Row) -> tuple[object, ...]:
    start, end = time_of(row["window_start"]), time_of(row["window_end"])
    return row["key"], start, end, row["n"], row["total"], row["largest"]


def summarized(result: Result) -> tuple[object, ...]:
    key, start, end, values = result
    total = 0
    for value in values:
        total += value
    return key, start, end, len(values), total, values[-1]


def as_result(row: Row) -> tuple[object, ...]:
    xs = row["xs"]
    assert isinstance(xs, list)
    return row["key"], row["start"], row["end"], tuple(xs)
