"""Running totals cover all records so far, with and without a local aggregate in front."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from pipelines.operators.aggregating.aggregates import count, max
from pipelines.operators.aggregating.aggregation import (
    BATCHES_BETWEEN_PROBES,
    Aggregation,
    KeyedAggregate,
    LocalAggregate,
)
from tests.unit.operators.harness import Host, Row

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.float64())])
AGGREGATION = Aggregation.of(("key",), {"n": count(), "highest": max("x")}, SCHEMA)


def test_a_batch_emits_the_new_totals_of_the_keys_it_touched_and_no_others() -> None:
    host = totals()

    host.send([row(1, 5.0), row(2, 1.0), row(1, 3.0)])
    host.send([row(2, 9.0)])

    assert host.emitted == [
        [{"key": 1, "n": 2, "highest": 5.0}, {"key": 2, "n": 1, "highest": 1.0}],
        [{"key": 2, "n": 2, "highest": 9.0}],
    ]


def test_totals_continue_after_a_recovery() -> None:
    host = totals()
    host.send([row(1, 5.0), row(2, 1.0)])

    successor = host.recovered()
    successor.send([row(1, 2.0)])

    assert successor.emitted[-1] == [{"key": 1, "n": 2, "highest": 5.0}]


@pytest.mark.parametrize("seed", range(20))
def test_totals_are_the_same_with_a_local_half_in_front(seed: int) -> None:
    rng = random.Random(seed)
    batches = [random_rows(rng) for _ in range(rng.randint(1, 6))]
    direct, local, behind = totals(), local_half(), totals(merges_partials=True)

    for rows in batches:
        direct.send(rows)
        local.send(rows)
        behind.send(local.emitted[-1])

    assert latest(behind) == latest(direct)
    assert {key: row["n"] for key, row in latest(behind).items()} == Counter(
        row["key"] for rows in batches for row in rows
    )


def test_the_local_half_sends_one_partial_result_per_key() -> None:
    local = local_half()

    local.send([row(1, float(x)) for x in range(10)] + [row(2, None)])

    assert local.rows == [
        {"key": 1, "n__count": 10, "highest__value": 9.0, "highest__count": 10},
        {"key": 2, "n__count": 1, "highest__value": float("-inf"), "highest__count": 0},
    ]


def test_the_local_half_stops_grouping_distinct_keys_and_tries_again_later() -> None:
    local = local_half()
    repeating = [row(7, 1.0)] * 4

    local.send([row(key, 1.0) for key in range(4)])
    for _ in range(BATCHES_BETWEEN_PROBES):
        local.send(repeating)
    local.send(repeating)

    sizes = [len(batch) for batch in local.emitted]
    assert sizes == [4, *[4] * BATCHES_BETWEEN_PROBES, 1]


def totals(*, merges_partials: bool = False) -> Host:
    schema = AGGREGATION.partial_schema if merges_partials else SCHEMA
    return Host(lambda: KeyedAggregate(AGGREGATION, merges_partials=merges_partials), [schema])


def local_half() -> Host:
    return Host(lambda: LocalAggregate(AGGREGATION), [SCHEMA])


def row(key: int, x: float | None) -> Row:
    return {"key": key, "x": x}


def random_rows(rng: random.Random) -> list[Row]:
    keys = rng.choice([3, 1_000])  # few: grouping pays; many: records pass one by one
    return [
        row(rng.randrange(keys), rng.choice([None, float(rng.randint(-9, 9))]))
        for _ in range(rng.randint(1, 40))
    ]


def latest(host: Host) -> dict[object, Row]:
    return {row["key"]: row for row in host.rows}
