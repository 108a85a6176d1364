"""Rows of two sides for join tests, and the pairs that nested loops find in them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from pipelines.operators.joining.window_join import JoinKind
from tests.unit.operators.harness import Row
from tests.unit.operators.subtasks import Subtasks

TIME = pa.timestamp("ms", "UTC")
LEFT = pa.schema([("key", pa.string()), ("id", pa.int64()), ("at", TIME), ("flight", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("id", pa.int64()), ("seen", TIME), ("wind", pa.int64())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ON = ("key", "id")
TIMES = ("at", "seen")
KEYS = [("a", 1), ("a", 2), ("b", 1), (None, 1), ("b", None)]

Rec = tuple[str | None, int | None, int, int]
"""Both key columns, the time, and a number that is unique within its side."""

Pair = tuple[int | None, int | None]
"""The numbers of a left and a right row."""


def random_input(rng: random.Random) -> Iterator[tuple[int, list[Rec]]]:
    """Yields batches of either side. Their times drift forward, with many stragglers."""
    now, numbers = -80, iter(range(10_000))
    for _ in range(rng.randint(2, 14)):
        now += rng.randint(0, 15)
        yield (
            rng.randint(0, 1),
            [
                (*rng.choice(KEYS), now + rng.randint(-60, 40), next(numbers))
                for _ in range(rng.choice([1, rng.randint(1, 12)]))
            ],
        )


def maybe_restore(joined: Subtasks, rng: random.Random) -> None:
    if rng.random() < 0.3:
        joined.restore(rng.randint(1, 4))


def row(port: int, record: Rec) -> Row:
    key, identity, time, count = record
    time_column, value_column = (("at", "flight"), ("seen", "wind"))[port]
    return {"key": key, "id": identity, time_column: at(time), value_column: count}


def at(time: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time)


def as_pair(row: Row) -> tuple[object, object]:
    return row["flight"], row["wind"]


def number(row: Row) -> int:
    value = row["flight"] if "flight" in row else row["wind"]
    assert isinstance(value, int)
    return value


def late_of(joined: Subtasks, port: int) -> list[Row]:
    return joined.emitted.sides.get(("late_left", "late_right")[port], [])


def is_match(left: Rec, right: Rec) -> bool:
    return None not in left[:2] and left[:2] == right[:2]


def joined_one_by_one(lefts: list[Rec], rights: list[Rec], kind: JoinKind) -> Iterator[Pair]:
    for left in lefts:
        for right in rights:
            if is_match(left, right):
                yield left[3], right[3]
    if kind in (JoinKind.LEFT, JoinKind.FULL):
        yield from ((x[3], None) for x in lefts if not any(is_match(x, y) for y in rights))
    if kind in (JoinKind.RIGHT, JoinKind.FULL):
        yield from ((None, y[3]) for y in rights if not any(is_match(x, y) for x in lefts))
