"""Aggregates of a changelog cover exactly the rows that it has not taken back."""

import random
from collections import defaultdict

import pyarrow as pa
import pytest

from pipelines.operators.aggregating.aggregates import count, mean, sum
from pipelines.operators.aggregating.aggregation import (
    Aggregation,
    KeyedAggregate,
    LocalAggregate,
)
from pipelines.stream import Environment, Pipeline
from pipelines.testing import assert_exactly_once, run_with_kills
from tests.unit.operators.harness import Host, Row

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64()), ("row_kind", pa.string())])
AGGREGATES = {"n": count(), "known": count("x"), "total": sum("x"), "mean": mean("x")}
AGGREGATION = Aggregation.of(("key",), AGGREGATES, SCHEMA, of_changes=True)
USERS = pa.schema([("user", pa.int64())])
ORDERS = pa.schema([("user", pa.int64()), ("price", pa.int64())])


@pytest.mark.parametrize("seed", range(30))
def test_aggregates_cover_exactly_the_remaining_rows(seed: int) -> None:
    rng = random.Random(seed)
    local = Host(lambda: LocalAggregate(AGGREGATION), [SCHEMA])
    host = Host(
        lambda: KeyedAggregate(AGGREGATION, merges_partials=True), [AGGREGATION.partial_schema]
    )
    left: list[tuple[int, int | None]] = []

    for _ in range(rng.randint(1, 8)):
        local.send([random_change(rng, left) for _ in range(rng.randint(1, 30))])
        host.send(local.emitted[-1])
        if rng.random() < 0.3:
            host = host.recovered()

    assert newest(host.rows) == model({row["key"] for row in host.rows}, left)


@pytest.mark.parametrize("kind", ["-D", "-U"])
def test_delete_and_update_before_rows_both_retract_a_value(kind: str) -> None:
    local = Host(lambda: LocalAggregate(AGGREGATION), [SCHEMA])

    local.send([change(1, 5, "+U"), change(1, 7, "+I"), change(1, 5, kind)])

    assert local.rows[0]["n__count"] == 1
    assert local.rows[0]["total__value"] == 7


def test_a_count_after_an_outer_join_counts_no_row_twice() -> None:
    run = run_with_kills(counted(), INPUT, kills=0, kill_count=0)

    assert newest(run.table("out").to_pylist(), "user") == {
        user: {"user": user, "rows": 1 if user % 3 == 0 else 2, "orders": 0 if user % 3 == 0 else 2}
        for user in range(30)
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_count_after_an_outer_join_is_exact_under_kills(seed: int) -> None:
    assert_exactly_once(counted(), INPUT, kills=seed, newest_by={"out": ["user"]})


INPUT = {
    "users": [{"user": user} for user in range(30)],
    "orders": [{"user": n % 30, "price": n} for n in range(60) if n % 3],
}


def counted() -> Pipeline:
    env = Environment()
    users = env.from_rows([], USERS, uid="users")
    orders = env.from_rows([], ORDERS, uid="orders")
    joined = users.join(orders, on=["user"], how="left", uid="joined")
    totals = joined.key_by("user").aggregate(rows=count(), orders=count("price"), uid="totals")
    totals.collect(uid="out")
    return env.build()


def random_change(rng: random.Random, left: list[tuple[int, int | None]]) -> Row:
    if left and rng.random() < 0.45:
        return change(*left.pop(rng.randrange(len(left))), "-D")
    left.append((rng.randrange(4), rng.choice([None, rng.randint(-9, 9)])))
    return change(*left[-1], "+I")


def change(key: int, x: int | None, kind: str) -> Row:
    return {"key": key, "x": x, "row_kind": kind}


def model(keys: set[object], left: list[tuple[int, int | None]]) -> dict[object, Row]:
    rows = defaultdict(list)
    for key, x in left:
        rows[key].append(x)
    return {key: aggregated(key, rows[key]) for key in keys}


def aggregated(key: object, values: list[int | None]) -> Row:
    known = [value for value in values if value is not None]
    total = None
    for value in known:
        total = value + (total or 0)
    return {
        "key": key,
        "n": len(values),
        "known": len(known),
        "total": total,
        "mean": None if total is None else total / len(known),
    }


def newest(rows: list[Row], key: str = "key") -> dict[object, Row]:
    return {row[key]: row for row in rows}
