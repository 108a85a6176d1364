"""Joins of streams with equal column names, and joins that name their window."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pipelines.connectors.in_process import BlackHole
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.columns import EVENT_TIME
from pipelines.stream import Environment, Stream, session, tumbling
from pipelines.testing import OperatorHarness

SCHEMA = pa.schema([("key", pa.string()), ("at", EVENT_TIME), ("n", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)
SUFFIXES = ("", "_right")


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", [("b", 2, None)]),
        ("right", [("c", None, 3)]),
        ("full", [("b", 2, None), ("c", None, 3)]),
    ],
)
@pytest.mark.parametrize("window", [tumbling(minutes=1), None])
def test_columns_of_both_sides_get_their_suffix(
    how: str, alone: list[tuple[Any, ...]], window: Any
) -> None:
    first, second = sides()
    joined = first.join(second, on=["key"], how=how, window=window, suffixes=SUFFIXES, uid="join")

    rows = emitted(joined, [row("a", 1), row("b", 2)], [row("a", 10), row("c", 3)])

    assert joined.schema.names[:5] == ["key", "at", "n", "at_right", "n_right"]
    pairs = [(row["key"], row["n"], row["n_right"]) for row in rows]
    taken_back = [(r["key"], r["n"], r["n_right"]) for r in rows if r.get("row_kind") == "-D"]
    for each in taken_back:
        pairs.remove(each)
        pairs.remove(each)
    assert sorted(pairs, key=str) == sorted([("a", 1, 10), *alone], key=str)
    assert [r["at_right"] for r in rows if r["n_right"] == 10] == [START]


def test_an_interval_join_takes_suffixes_for_both_sides() -> None:
    first, second = sides()
    minute = timedelta(minutes=1)
    joined = first.interval_join(
        second, on=["key"], lower=-minute, upper=minute, suffixes=("_l", "_r"), uid="join"
    )

    (found,) = emitted(joined, [row("a", 1)], [row("a", 10)])

    assert found == {
        **{"key": "a", "at_l": START, "n_l": 1, "at_r": START, "n_r": 10},
        "join_time": START,
    }


def test_the_event_time_of_a_join_has_the_suffixed_name_of_its_column() -> None:
    first, second = sides()

    joined = first.join(
        second, on=["key"], window=tumbling(minutes=1), suffixes=("_l", "_r"), uid="join"
    )

    assert joined.time_column == "at_l"


@pytest.mark.parametrize(
    ("window", "length"),
    [(tumbling(minutes=1), timedelta(minutes=1)), (session(seconds=5), timedelta(seconds=5))],
)
def test_a_join_names_its_window_on_request(window: Any, length: timedelta) -> None:
    first, second = sides()
    joined = first.join(
        second, on=["key"], window=window, suffixes=SUFFIXES, names_window=True, uid="join"
    )

    (found,) = emitted(joined, [row("a", 1)], [row("a", 10)])

    assert (found["window_start"], found["window_end"]) == (START, START + length)
    assert joined.time_column == "window_time"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "'join' cannot .* Both sides have a column 'at'; rename one of them, or set suffixes"),
        ({"suffixes": ("_x", "_x")}, "'join' cannot .* Both sides have a column 'at_x'"),
        ({"names_window": True}, "'join' joins without a window; leave out names_window"),
    ],
)
def test_impossible_names_of_join_columns_are_refused(
    options: dict[str, Any], sentence: str
) -> None:
    first, second = sides()

    with pytest.raises(Rejected, match=sentence):
        first.join(second, on=["key"], uid="join", **options)


def sides() -> tuple[Stream, Stream]:
    environment = Environment()
    first, second = (
        environment.from_rows([], SCHEMA, uid=uid, timestamp_column="at")
        for uid in ("first", "second")
    )
    return first, second


def emitted(
    joined: Stream, left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    if joined.is_changelog:
        joined = joined.as_records(uid="records")
    joined.sink(BlackHole(), uid="out")
    harness = OperatorHarness(joined.environment.build(), "join")
    harness.push(left, port=0)
    harness.push(right, port=1)
    harness.watermark(MAX_WATERMARK_MS)
    return harness.output()


def row(key: str, n: int) -> dict[str, Any]:
    return {"key": key, "at": START, "n": n}
