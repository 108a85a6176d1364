"""Keyed rows for tests of operators that choose rows, and the rows that plain Python chooses."""

import random
from collections import Counter
from collections.abc import Callable
from functools import cmp_to_key

import pyarrow as pa

from tests.unit.operators.harness import Row
from tests.unit.operators.subtasks import Subtasks

SCHEMA = pa.schema(
    [("key", pa.string()), ("id", pa.int64()), ("price", pa.float64()), ("note", pa.string())]
)
WHOLE = SCHEMA.set(2, pa.field("price", pa.int64()))
KEYS = ("key",)


def random_batches(rng: random.Random, schema: pa.Schema = SCHEMA) -> list[list[Row]]:
    """Ids are unique and rise in order of arrival; prices repeat and may be null."""
    ids = iter(range(10_000))
    keys = rng.choice([2, 40])
    prices: list[float | None] = [*map(float, range(-3, 6))]
    if schema is WHOLE:
        prices = [*range(-3, 6), -(1 << 63), (1 << 63) - 1]
    if rng.random() < 0.7:
        prices.append(None)
    return [
        [
            random_row(rng, keys, next(ids), prices)
            for _ in range(rng.choice([1, rng.randint(1, 40)]))
        ]
        for _ in range(rng.randint(1, 12))
    ]


def random_row(rng: random.Random, keys: int, number: int, prices: list[float | None]) -> Row:
    key = rng.choice([None, *(f"k{each}" for each in range(keys))])
    note = rng.choice([None, "", "x" * 40])
    return {"key": key, "id": number, "price": rng.choice(prices), "note": note}


def send_with_cuts(hosted: Subtasks, rng: random.Random, schema: pa.Schema = SCHEMA) -> list[Row]:
    """Sends random batches and returns their rows; restores after some, at any parallelism."""
    sent = []
    for batch in random_batches(rng, schema):
        hosted.send(batch)
        sent += batch
        if rng.random() < 0.3:
            hosted.restore(rng.randint(1, 3))
    return sent


def first_n(
    rows: list[Row], n: int, *, descending: bool, newest_first: bool = False
) -> dict[object, list[Row]]:
    """Returns the first `n` rows of each key, in order."""
    ordered = sorted(rows, key=cmp_to_key(comparison(descending, newest_first)))
    chosen: dict[object, list[Row]] = {}
    for row in ordered:
        of_key = chosen.setdefault(row["key"], [])
        if len(of_key) < n:
            of_key.append(row)
    return chosen


def comparison(descending: bool, newest_first: bool) -> Callable[[Row, Row], int]:
    def compare(one: Row, other: Row) -> int:
        a, b = one["price"], other["price"]
        if a != b:
            if a is None or b is None:
                return 1 if a is None else -1
            return (1 if a > b else -1) * (-1 if descending else 1)
        older = one["id"] - other["id"]
        return -older if newest_first else older

    return compare


def applied(changes: list[Row]) -> Counter[tuple]:
    """Returns the rows that remain. Raises AssertionError if a missing row was taken back."""
    left: Counter[tuple] = Counter()
    for change in changes:
        row = tuple(sorted((k, v) for k, v in change.items() if k != "row_kind"))
        left[row] += 1 if change["row_kind"] == "+I" else -1
        assert left[row] in (0, 1), change
    return +left


def as_counter(rows: list[Row]) -> Counter[tuple]:
    return Counter(tuple(sorted(row.items())) for row in rows)
