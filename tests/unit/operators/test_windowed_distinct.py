"""Counts of distinct values in windows, compared with plain Python's windows."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.operators.windowing.windows import SessionWindows, Windows
from pipelines.stream import (
    Environment,
    Pipeline,
    count,
    count_distinct,
    processing_time,
    session,
    sliding,
    sum,
    tumbling,
)
from pipelines.testing import OperatorHarness, assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.window_oracle import AlignedOracle, SessionOracle

SCHEMA = pa.schema(
    [("key", pa.string()), ("at", pa.timestamp("ms", "UTC")), ("x", pa.int64()), ("t", pa.string())]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)
KINDS = [
    tumbling(10 * MS),
    sliding(12 * MS, every=4 * MS),
    sliding(5 * MS, every=12 * MS),
    session(7 * MS),
]


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    is_on_disk = request.param == "rocksdb"
    with rocksdb_backends(TINY_BYTES) if is_on_disk else nullcontext() as backends:
        if is_on_disk:
            monkeypatch.setattr("pipelines.testing.operators.HashMapBackend", backends)
        yield


@pytest.mark.parametrize("windows", KINDS, ids=str)
@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("seed", range(3))
def test_each_window_counts_its_distinct_values_across_restores(
    seed: int, lateness: int, windows: Windows, backend: None
) -> None:
    rng = random.Random(seed)
    pipeline = counted(windows, lateness)
    host = OperatorHarness(pipeline, "counts", parallelism=rng.randint(1, 3))
    watermark = -30
    host.watermark(watermark)
    oracle = oracle_of(windows, lateness, watermark)

    for _ in range(25):
        rows = [
            (rng.choice("abc"), rng.randint(watermark - 8, watermark + 30), rng.randint(0, 4))
            for _ in range(rng.choice([1, 3, 15]))
        ]
        host.push([row(*each) for each in rows])
        assert results(host) == expected(oracle.add(rows))
        watermark += rng.randint(0, 9)
        host.watermark(watermark)
        assert results(host) == expected(oracle.advance(watermark))
        if rng.random() < 0.3:
            parallelism = rng.randint(1, 3)
            host = OperatorHarness(
                pipeline, "counts", parallelism=parallelism, restore=host.snapshot()
            )

    host.watermark(10_000)
    results(host)
    assert not any(host.state(name) for name in host.state_names), "all windows are closed"


def test_processing_time_windows_count_distinct_values_too() -> None:
    env = Environment()
    keyed = env.from_rows([], SCHEMA, uid="in").key_by("key")
    windows = keyed.window(processing_time(tumbling(10 * MS)))
    windows.aggregate(values=count_distinct("x"), uid="counts").collect(uid="out")
    host = OperatorHarness(env.build(), "counts")

    host.push([row("a", 0, 1), row("a", 0, 2)])
    host.push([row("a", 0, 2), row("a", 0, None)])
    host.pass_time(10 * MS)

    assert [each["values"] for each in host.output()] == [2]


@pytest.mark.parametrize("windows", [KINDS[0], KINDS[1], KINDS[3]], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_distinct_counts_in_windows_are_exact_under_kills(seed: int, windows: Windows) -> None:
    rows = [row("abc"[n % 3], n // 20 * 20 + n % 7, n % 5) for n in range(300)]

    assert_exactly_once(counted(windows, 0), rows, kills=seed, parallelism=1 + seed % 3)


def counted(windows: Windows, lateness: int) -> Pipeline:
    env = Environment()
    stream = env.from_rows(
        [], SCHEMA, uid="in", timestamp_column="at", out_of_orderness=timedelta(seconds=1)
    )
    windowed = stream.key_by("key").window(windows).allowed_lateness(lateness * MS)
    windowed.aggregate(
        n=count(),
        values=count_distinct("x"),
        texts=count_distinct("t"),
        again=count_distinct("x"),
        total=sum("x"),
        uid="counts",
    ).collect(uid="out")
    return env.build()


def oracle_of(windows: Windows, lateness: int, watermark: int) -> AlignedOracle | SessionOracle:
    if isinstance(windows, SessionWindows):
        return SessionOracle(windows.gap_ms, lateness, watermark)
    return AlignedOracle(windows.size_ms, windows.slide_ms, lateness, watermark)


def row(key: str, at: int, x: int | None) -> dict:
    text = None if x is None or x == 3 else str(x % 2)
    return {"key": key, "at": EPOCH + at * MS, "x": x, "t": text}


def results(host: OperatorHarness) -> list[tuple]:
    found = []
    for each in host.output():
        start = each["window_start"]
        assert each["again"] == each["values"]
        numbers = each["n"], each["values"], each["texts"], each["total"]
        found.append((each["key"], (start - EPOCH) // MS, *numbers))
    return sorted(found)


def expected(due: list) -> list[tuple]:
    made = []
    for key, start, _, values in due:
        total, texts = 0, {value % 2 for value in values if value != 3}
        for value in values:
            total += value
        made.append((key, start, len(values), len(set(values)), len(texts), total))
    return sorted(made)
