"""The first rows of each key and window equal those of a full sort, and are emitted once."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.ranking.top_n import SessionTopN, WindowTopN
from pipelines.operators.windowing.windows import SessionWindows, SlidingWindows, TumblingWindows
from pipelines.stream import Environment, KeyedStream, Pipeline, sliding, tumbling
from pipelines.testing import assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Row
from tests.unit.operators.subtasks import Subtasks

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("key", pa.string()), ("at", TIME), ("id", pa.int64()), ("price", pa.int64())])
KEYS = ("key",)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = 10_000
Bounds = Callable[[list[Row], Row], list[tuple[int, int]]]


@pytest.mark.parametrize("seed", range(20))
def test_the_first_rows_of_tumbling_and_sliding_windows_are_emitted(seed: int) -> None:
    rng = random.Random(seed)
    size, n = rng.randint(2, 30), rng.choice([1, 3, 50])
    every = rng.randint(1, size)
    is_tumbling = rng.random() < 0.4
    windows = TumblingWindows(size) if is_tumbling else SlidingWindows(size, every_ms=every)
    slide = size if is_tumbling else every

    def bounds(rows: list[Row], row: Row) -> list[tuple[int, int]]:
        newest = ms_of(row["at"]) // slide * slide
        starts = range(newest, ms_of(row["at"]) - size, -slide)
        return [(start, start + size) for start in starts]

    order = Order("price", descending=True)
    hosted = Subtasks(
        lambda: WindowTopN(KEYS, "at", windows, order, n, "place"), [SCHEMA], [KEYS], 2
    )
    found, rows = run(hosted, rng)

    assert found == expected(rows, bounds, n)


@pytest.mark.parametrize("seed", range(15))
def test_the_first_rows_of_each_session_are_emitted(seed: int) -> None:
    rng = random.Random(seed)
    gap, n = rng.randint(1, 12), rng.choice([1, 3])

    def bounds(rows: list[Row], row: Row) -> list[tuple[int, int]]:
        first = last = ms_of(row["at"])
        times = sorted(ms_of(each["at"]) for each in rows if each["key"] == row["key"])
        for time in times:
            last = time if 0 <= time - last <= gap else last
        for time in reversed(times):
            first = time if 0 <= first - time <= gap else first
        return [(first, last + gap)]

    sessions = SessionWindows(gap)
    hosted = Subtasks(
        lambda: SessionTopN(KEYS, "at", sessions, Order("price", True), n, "place"),
        [SCHEMA],
        [KEYS],
        2,
    )
    found, rows = run(hosted, rng, lag=gap + 1)

    assert found == expected(rows, bounds, n)


def test_top_rows_are_the_same_when_state_is_in_rocksdb() -> None:
    with rocksdb_backends(TINY_BYTES) as backends:
        windows, order = TumblingWindows(20), Order("price", True)
        hosted = Subtasks(
            lambda: WindowTopN(KEYS, "at", windows, order, 2, "place"),
            [SCHEMA],
            [KEYS],
            2,
            backends=backends,
        )
        found, rows = run(hosted, random.Random(1))

        assert found == expected(rows, lambda _, row: [tumbling_bounds(row)], 2)
        assert hosted.state_rows == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_best_row_of_a_window_is_exact_under_kills(seed: int) -> None:
    rows = [
        {"key": "ab"[n % 2], "at": EPOCH + timedelta(seconds=n), "id": n, "price": n * 7 % 31}
        for n in range(300)
    ]

    assert_exactly_once(best_per_minute(), rows, kills=seed)


def test_the_result_has_the_event_time_of_its_window() -> None:
    of_minutes = keyed().window(tumbling(minutes=1)).max_by("price", uid="minutes")
    of_hours = keyed().window(sliding(timedelta(hours=1), every=timedelta(minutes=5)))
    slid = of_hours.top_n(3, order_by="price", rank="place", uid="slid")

    assert of_minutes.schema.names == ["key", "window_start", "at", "id", "price"]
    assert slid.schema.names == [
        *("key", "window_start", "window_end", "window_time", "at", "id", "price", "place")
    ]
    assert (of_minutes.time_column, slid.time_column) == ("window_start", "window_time")
    assert not slid.is_changelog


def test_an_allowed_lateness_is_refused() -> None:
    late = keyed().window(tumbling(minutes=1)).allowed_lateness(timedelta(minutes=1))

    with pytest.raises(Rejected, match=r"'best' cannot be built: .* leave out allowed_lateness"):
        late.min_by("price", uid="best")


def run(hosted: Subtasks, rng: random.Random, lag: int = 0) -> tuple[Counter, list[Row]]:
    """Returns the emitted rows and the sent ones. None is late: time stays `lag` behind them."""
    sent: list[Row] = []
    now = 0
    for _ in range(rng.randint(1, 10)):
        batch = [random_row(rng, now, len(sent) + n) for n in range(rng.randint(1, 25))]
        hosted.send(batch)
        sent += batch
        now += rng.randint(0, 15)
        hosted.advance(now - lag - 1)
        if rng.random() < 0.3:
            hosted.restore(rng.randint(1, 3))
    hosted.advance(END)
    found: Counter = Counter()
    for row in hosted.emitted.rows:
        start = ms_of(row["window_start"])
        found[start, row["key"], row["place"], row["price"]] += 1
    return found, sent


def expected(rows: list[Row], bounds: Bounds, n: int) -> Counter:
    windows: dict[tuple, list[int]] = defaultdict(list)
    for row in rows:
        for window in bounds(rows, row):
            windows[window, row["key"]].append(row["price"])
    return Counter(
        (window[0], key, place, price)
        for (window, key), prices in windows.items()
        for place, price in enumerate(sorted(prices, reverse=True)[:n], start=1)
    )


def tumbling_bounds(row: Row) -> tuple[int, int]:
    start = ms_of(row["at"]) // 20 * 20
    return start, start + 20


def random_row(rng: random.Random, now: int, number: int) -> Row:
    at = EPOCH + timedelta(milliseconds=now + rng.randint(0, 20))
    return {"key": rng.choice("abc"), "at": at, "id": number, "price": rng.randint(0, 9)}


def ms_of(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


def keyed() -> KeyedStream:
    env = Environment()
    return env.from_rows([], SCHEMA, uid="rows", timestamp_column="at").key_by("key")


def best_per_minute() -> Pipeline:
    stream = keyed()
    best = stream.window(tumbling(minutes=1)).max_by("price", uid="best")
    best.collect(uid="out")
    return stream.stream.environment.build()
