"""Combining before the exchange changes only how many rows travel."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.local import run_local
from pipelines.operators.aggregating.aggregates import Aggregate, count, max, mean, min, sum
from pipelines.operators.aggregating.aggregation import BATCHES_BETWEEN_PROBES
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.combining import CombineInPanes
from pipelines.operators.windowing.window_aggregate import WindowAggregate
from pipelines.operators.windowing.windows import (
    COMBINED_ROWS,
    AlignedWindows,
    SlidingWindows,
    TumblingWindows,
)
from pipelines.stream import (
    LATE,
    Environment,
    Pipeline,
    processing_time,
    session,
    sliding,
    tumbling,
)
from pipelines.testing import assert_exactly_once
from tests.unit.operators.harness import Host, Row

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [("key", pa.string()), ("time", TIME), ("x", pa.int64()), ("window_start", TIME)]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AGGREGATES: dict[str, Aggregate] = {
    "n": count(),
    "values": count("x"),
    "total": sum("x"),
    "average": mean("x"),
    "highest": max("x"),
    "lowest": min("x"),
    "newest": max("window_start"),
}
KINDS = [
    TumblingWindows(10),
    TumblingWindows(10, 3),
    SlidingWindows(12, every_ms=4),
    SlidingWindows(10, every_ms=4),
    SlidingWindows(5, every_ms=12),
]


@pytest.mark.parametrize("windows", KINDS, ids=str)
@pytest.mark.parametrize("lateness_ms", [0, 7])
@pytest.mark.parametrize("seed", range(8))
def test_combining_changes_neither_the_results_nor_the_late_rows(
    seed: int, lateness_ms: int, windows: AlignedWindows
) -> None:
    rng = random.Random(seed)
    plain, behind = aggregate(windows, lateness_ms), aggregate(windows, lateness_ms)
    combining = Combining(windows)
    watermark_ms = -50

    for _ in range(rng.randint(1, 60)):
        batch = random_batch(rng)
        plain.operator.on_batch(0, batch)
        for each in combining.given(batch):
            behind.operator.on_batch(0, each)
        if rng.random() < 0.5:
            watermark_ms += rng.randint(0, 12)
            plain.advance(watermark_ms)
            behind.advance(watermark_ms)
        if rng.random() < 0.2:
            plain, behind, combining = plain.recovered(), behind.recovered(), Combining(windows)
        assert behind.rows == plain.rows
        assert behind.counters == plain.counters
    plain.advance(MAX_WATERMARK_MS)
    behind.advance(MAX_WATERMARK_MS)

    assert behind.rows == plain.rows
    assert behind.counters == plain.counters


def test_rows_of_one_key_and_pane_become_one_row() -> None:
    combining = Combining(SlidingWindows(10, every_ms=5))

    (combined,) = combining.given(
        batch_of([("a", 1, 2), ("b", 2, 3), ("a", 4, 5), ("a", 5, 7), ("b", 0, 1), ("a", 6, 1)])
    )

    found = {(row["key"], row["total__value"], row[COMBINED_ROWS]) for row in combined.to_pylist()}
    assert found == {("a", 7, 2), ("b", 4, 2), ("a", 8, 2)}


def test_distinct_keys_switch_combining_off_until_the_next_probe() -> None:
    combining = Combining(TumblingWindows(10))
    unique = batch_of([(str(n), 1, n) for n in range(20)])
    repeated = batch_of([("a", 1, n) for n in range(20)])

    passed = [combining.given(unique)]
    passed += [combining.given(repeated) for _ in range(BATCHES_BETWEEN_PROBES)]

    assert [given == [batch] for given, batch in zip(passed, [unique], strict=False)] == [True]
    assert all(given == [repeated] for given in passed[1:])
    (combined,) = combining.given(repeated)
    assert combined.column(COMBINED_ROWS).to_pylist() == [20]


def test_nothing_is_combined_if_the_late_side_output_is_read() -> None:
    assert "sums.local" in pipeline().operators
    assert "sums.local" not in pipeline(reads_late=True).operators
    assert pipeline(reads_late=True).graph.node("sums").inputs[0].upstream == "in"


def test_nothing_is_combined_if_the_author_already_uses_the_uid() -> None:
    env = Environment()
    stream = env.from_rows([], SCHEMA, uid="sums.local", timestamp_column="time")
    stream.key_by("key").window(tumbling(hours=1)).aggregate(n=count(), uid="sums").collect(
        uid="out"
    )

    assert set(env.build().operators) == {"sums"}


def test_sessions_and_processing_time_windows_are_not_combined() -> None:
    env = Environment()
    keyed = env.from_rows([], SCHEMA, uid="in", timestamp_column="time").key_by("key")
    windows = keyed.window(processing_time(tumbling(hours=1)))
    windows.aggregate(n=count(), uid="clock").collect(uid="a")
    keyed.window(session(minutes=1)).aggregate(n=count(), uid="session").collect(uid="b")

    assert set(env.build().operators) == {"clock", "session"}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_over_the_whole_stream_are_combined_too(parallelism: int) -> None:
    env = Environment()
    stream = env.from_rows(rows(400), SCHEMA, uid="in", timestamp_column="time", splits=2)
    windows = sliding(timedelta(milliseconds=40), every=timedelta(milliseconds=20))
    stream.window_all(windows).aggregate(n=count(), total=sum("x"), uid="all").collect(uid="out")
    pipeline = env.build()

    found = run_local(pipeline, parallelism=parallelism).rows()

    assert "all.local" in pipeline.operators
    assert [row["n"] for row in sorted(found, key=lambda row: row["window_start"])] == [
        20, *[40] * 19, 20
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_combined_rows_are_exact_under_kills(seed: int) -> None:
    assert_exactly_once(pipeline(), rows(300), kills=seed, parallelism=1 + seed % 3)


class Combining:
    """Hosts the combining step before the exchange."""

    def __init__(self, windows: AlignedWindows) -> None:
        self._collected: list[pa.RecordBatch] = []
        self._operator = CombineInPanes(("key",), "time", windows, AGGREGATES)
        context = OperatorContext(
            uid="local",
            subtask=0,
            parallelism=1,
            state=aggregate(windows).state,
            collect=self._collected.append,
        )
        self._operator.open(context, [SCHEMA])

    def given(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self._operator.on_batch(0, batch)
        taken = list(self._collected)
        self._collected.clear()
        return taken


def aggregate(windows: AlignedWindows, lateness_ms: int = 0) -> Host:
    return Host(
        lambda: WindowAggregate(("key",), "time", windows, AGGREGATES, lateness_ms), [SCHEMA]
    )


def pipeline(*, reads_late: bool = False) -> Pipeline:
    env = Environment()
    keyed = env.from_rows([], SCHEMA, uid="in", timestamp_column="time").key_by("key")
    sums = keyed.window(tumbling(milliseconds=20)).aggregate(AGGREGATES, uid="sums")
    sums.collect(uid="out")
    if reads_late:
        sums.side_output(LATE, uid="late").collect(uid="late-out")
    return env.build()


def rows(number: int) -> list[Row]:
    return [row("abc"[n % 3], n, n) for n in range(number)]


def row(key: str, time_ms: int | None, x: int | None) -> Row:
    time = None if time_ms is None else EPOCH + timedelta(milliseconds=time_ms)
    return {"key": key, "time": time, "x": x, "window_start": EPOCH}


def batch_of(values: list[tuple[str, int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(*each) for each in values], schema=SCHEMA)


def random_batch(rng: random.Random) -> pa.RecordBatch:
    keys = rng.choice(["ab", "abcdefghijklmnopqrstuvwxyz"])
    newest = rng.choice([30, 150])
    made = [
        row(
            rng.choice(keys),
            rng.choice([None, *[rng.randint(-60, newest)] * 9]),
            rng.choice([None, rng.randint(-9, 9)]),
        )
        for _ in range(rng.randint(1, 40))
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def test_combining_is_chained_before_the_exchange_at_the_same_parallelism() -> None:
    env = Environment()
    stream = env.from_rows([], SCHEMA, uid="in", timestamp_column="time")
    env.set_parallelism(stream.node, 3)
    windowed = stream.key_by("key").window(tumbling(milliseconds=20))
    windowed.aggregate(n=count(), uid="sums").collect(uid="out")

    assert [vertex.nodes for vertex in env.build().graph.vertices] == [
        ("in", "sums.local"),
        ("sums", "out"),
    ]
