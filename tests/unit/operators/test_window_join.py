"""Window join: each matching pair of a window once and nothing else; lost rows are counted."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators import columns
from pipelines.operators.joining.window_join import WindowJoin
from pipelines.operators.windowing.windows import TumblingWindows
from tests.unit.operators.harness import Host, Row

TIME = pa.timestamp("ms", "UTC")
LEFT = pa.schema([("place", pa.string()), ("time", TIME), ("flight", pa.int64())])
RIGHT = pa.schema([("place", pa.string()), ("measured", TIME), ("wind", pa.list_(pa.int64()))])
SIZE_MS = 10
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("seed", range(40))
def test_every_pair_in_a_window_is_joined_once_and_unmatched_rows_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    host = join()
    in_time: tuple[list[Row], list[Row]] = ([], [])
    late, watermark_ms = 0, -50
    host.advance(watermark_ms)

    for number in range(rng.randint(1, 12)):
        port = rng.randint(0, 1)
        rows = random_rows(rng, port, number)
        host.send(rows, port)
        for row in rows:
            is_late = (window_of(row, port) + 1) * SIZE_MS - 1 <= watermark_ms
            late += is_late
            if not is_late:
                in_time[port].append(row)
        watermark_ms += rng.randint(0, 20)
        host.advance(watermark_ms)
        if rng.random() < 0.3:
            host = host.recovered()
    host.advance(MAX_WATERMARK_MS)

    pairs, unmatched = joined_one_by_one(*in_time)
    assert Counter(map(as_key, host.rows)) == Counter(map(as_key, pairs))
    assert host.counters.get("unmatched_left", 0) == unmatched
    assert host.counters.get("late_records", 0) == late
    assert host.state.statistics().rows == 0


def test_equal_keys_in_different_windows_are_not_joined() -> None:
    host = join()

    host.send([left("JFK", SIZE_MS - 1, 1)])
    host.send([right("JFK", SIZE_MS, 7)], port=1)
    host.advance(MAX_WATERMARK_MS)

    assert host.rows == []
    assert host.counters == {"unmatched_left": 1}


def test_a_window_waits_for_its_watermark_whichever_side_came_first() -> None:
    host = join()
    host.send([right("JFK", 3, 7)], port=1)
    host.send([left("JFK", 0, 1)])

    host.advance(SIZE_MS - 2)
    assert host.rows == []

    host.advance(SIZE_MS - 1)
    assert [(r["flight"], r["wind"]) for r in host.rows] == [(1, [7])]


def test_null_keys_match_nothing() -> None:
    host = join()

    host.send([left(None, 0, 1)])
    host.send([right(None, 0, 7)], port=1)
    host.advance(MAX_WATERMARK_MS)

    assert host.rows == []
    assert host.counters == {"unmatched_left": 1}


def test_pairs_come_in_order_of_window_then_of_arrival() -> None:
    host = join()

    host.send([right("JFK", 0, 7), right("JFK", 1, 8), right("JFK", 11, 9)], port=1)
    host.send([left("JFK", 12, 3), left("JFK", 2, 2), left("JFK", 1, 1)])
    host.advance(MAX_WATERMARK_MS)

    found = [(r["flight"], r["wind"]) for r in host.rows]
    assert found == [(2, [7]), (2, [8]), (1, [7]), (1, [8]), (3, [9])]


def test_many_results_are_emitted_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_OUTPUT_ROWS", 3)
    host = join()

    host.send([left("JFK", 0, number) for number in range(5)])
    host.send([right("JFK", 0, 7)], port=1)
    host.advance(MAX_WATERMARK_MS)

    assert [len(batch) for batch in host.emitted] == [3, 2]


@pytest.mark.parametrize(
    ("on", "times", "right_schema", "sentence"),
    [
        (("missing",), ("time", "measured"), RIGHT, "no column 'missing'"),
        (("place",), ("flight", "measured"), RIGHT, "event time column 'flight' is int64"),
        (("place",), ("time", "wind"), RIGHT, "event time column 'wind'"),
        (
            ("place",),
            ("time", "measured"),
            RIGHT.set(0, pa.field("place", pa.int64())),
            "'place' is string on the left and int64 on the right",
        ),
        (
            ("place",),
            ("time", "time"),
            RIGHT.set(1, pa.field("time", TIME)),
            "Both sides have a column 'time'",
        ),
    ],
)
def test_sides_that_do_not_fit_are_refused_by_column(
    on: tuple[str, ...], times: tuple[str, str], right_schema: pa.Schema, sentence: str
) -> None:
    with pytest.raises(Rejected, match=sentence):
        WindowJoin(on, times, TumblingWindows(SIZE_MS)).output_schema([LEFT, right_schema])


def join() -> Host:
    create = lambda: WindowJoin(  # noqa: E731 - the host makes one operator per life
        ("place",), ("time", "measured"), TumblingWindows(SIZE_MS)
    )
    return Host(create, [LEFT, RIGHT])


def left(place: str | None, time_ms: int, flight: int) -> Row:
    return {"place": place, "time": EPOCH + timedelta(milliseconds=time_ms), "flight": flight}


def right(place: str | None, time_ms: int, wind: int) -> Row:
    return {"place": place, "measured": EPOCH + timedelta(milliseconds=time_ms), "wind": [wind]}


def random_rows(rng: random.Random, port: int, number: int) -> list[Row]:
    side = (left, right)[port]
    return [
        side(rng.choice(["JFK", "EWR", None]), rng.randint(-60, 150), 100 * number + i)
        for i in range(rng.randint(0, 15))
    ]


def window_of(row: Row, port: int) -> int:
    time = row[("time", "measured")[port]]
    assert isinstance(time, datetime)
    return round((time - EPOCH).total_seconds() * 1_000) // SIZE_MS


def joined_one_by_one(lefts: list[Row], rights: list[Row]) -> tuple[list[Row], int]:
    """Returns all pairs by nested loops, and the number of left rows without a partner."""
    pairs: list[Row] = []
    unmatched = 0
    for one in lefts:
        partners = [
            {name: value for name, value in other.items() if name != "place"}
            for other in rights
            if one["place"] is not None
            and (one["place"], window_of(one, 0)) == (other["place"], window_of(other, 1))
        ]
        pairs += [{**one, **partner} for partner in partners]
        unmatched += not partners
    return pairs, unmatched


def as_key(row: Row) -> tuple[object, ...]:
    """Identifies a pair by its numbers, which are unique within a side, and by both windows."""
    wind = row["wind"]
    assert isinstance(wind, list)
    return row["place"], row["flight"], wind[0], window_of(row, 0), window_of(row, 1)
