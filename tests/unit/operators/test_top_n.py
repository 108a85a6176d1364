"""The first rows of a key equal those of a full sort, across cuts and rescaling."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.ranking.top_n import BestRow, TopN
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, Pipeline, count
from pipelines.testing import assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Row
from tests.unit.operators.ranked_models import (
    KEYS,
    SCHEMA,
    WHOLE,
    applied,
    as_counter,
    comparison,
    first_n,
    send_with_cuts,
)
from tests.unit.operators.subtasks import Subtasks


@pytest.fixture(params=["hashmap", "rocksdb"])
def backends(request: pytest.FixtureRequest) -> Iterator[BackendFactory]:
    if request.param == "hashmap":
        yield HashMapBackend
        return
    with rocksdb_backends(TINY_BYTES) as rocksdb:
        yield rocksdb


@pytest.mark.parametrize("seed", range(40))
def test_the_first_n_rows_of_each_key_remain(backends: BackendFactory, seed: int) -> None:
    rng = random.Random(seed)
    n, descending = rng.choice([1, 2, 5, 30]), rng.random() < 0.5
    order, schema = Order("price", descending), rng.choice([SCHEMA, WHOLE])
    top = Subtasks(lambda: TopN(KEYS, order, n), [schema], [KEYS], 2, backends=backends)

    rows = send_with_cuts(top, rng, schema)

    expected = first_n(rows, n, descending=descending)
    assert applied(top.emitted.rows) == as_counter(list(chain(*expected.values())))


@pytest.mark.parametrize("seed", range(20))
def test_with_a_rank_column_each_remaining_row_carries_its_rank(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.choice([1, 3, 10])
    top = Subtasks(lambda: TopN(KEYS, Order("price", True), n, "place"), [SCHEMA], [KEYS], 2)

    rows = send_with_cuts(top, rng)

    expected = first_n(rows, n, descending=True)
    placed = [
        row | {"place": place}
        for of_key in expected.values()
        for place, row in enumerate(of_key, start=1)
    ]
    assert applied(top.emitted.rows) == as_counter(placed)


@pytest.mark.parametrize("seed", range(20))
def test_each_emitted_row_of_a_key_is_its_best_so_far(backends: BackendFactory, seed: int) -> None:
    rng = random.Random(seed)
    descending = rng.random() < 0.5
    order, schema = Order("price", descending), rng.choice([SCHEMA, WHOLE])
    best = Subtasks(lambda: BestRow(KEYS, order), [schema], [KEYS], 2, backends=backends)

    rows = send_with_cuts(best, rng, schema)

    expected = {key: of_key[0] for key, of_key in first_n(rows, 1, descending=descending).items()}
    assert {row["key"]: row for row in best.emitted.rows} == expected
    assert_each_is_better_than_the_one_before(best.emitted.rows, descending)


def test_rows_outside_the_top_emit_nothing() -> None:
    top = Subtasks(lambda: TopN(KEYS, Order("price", True), 2), [SCHEMA], [KEYS])
    top.send([row(1, 5.0), row(2, 7.0)])
    top.emitted.take()

    top.send([row(3, 5.0), row(4, None), row(5, 1.0)])

    assert top.emitted.take() == []


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.string(), list("abcd")),
        (
            pa.timestamp("ms", "UTC"),
            [datetime(year, 1, 1, tzinfo=UTC) for year in range(1969, 1973)],
        ),
    ],
    ids=str,
)
def test_the_first_strings_or_times_in_order_remain(type_: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("key", pa.string()), ("value", type_)])
    top = Subtasks(lambda: TopN(KEYS, Order("value"), 2), [schema], [KEYS])

    top.send([{"key": "k", "value": values[n]} for n in (3, 1, 0, 2)])

    assert sorted(row["value"] for row in top.emitted.rows) == values[:2]


@pytest.mark.parametrize("seed", range(3))
def test_top_rows_are_exact_under_kills(seed: int) -> None:
    rows = [
        {"key": f"k{n % 5}", "id": n, "price": float(n * 7 % 31), "note": ""} for n in range(300)
    ]

    assert_exactly_once(counted(), rows, kills=seed, newest_by={"out": ["note"]})


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        (lambda: TopN(KEYS, Order("cost"), 1), "no column 'cost'"),
        (lambda: TopN(KEYS, Order("price"), 0), "first 0 rows cannot be"),
        (lambda: TopN(KEYS, Order("key"), 1), "are equal in its column 'key'"),
        (lambda: TopN(("nokey",), Order("price"), 1), "no column 'nokey'"),
        (lambda: TopN(KEYS, Order("price"), 1, "note"), "has a column 'note'"),
        (lambda: TopN(("price",), Order("id"), 1), "key column 'price' has type double"),
    ],
)
def test_what_cannot_be_ranked_is_refused(create: partial[TopN], sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        create().output_schema([SCHEMA])


def test_rows_that_state_cannot_hold_are_refused() -> None:
    schema = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))

    with pytest.raises(Rejected, match="value column 'tags' has type list"):
        TopN(KEYS, Order("price"), 1).output_schema([schema])


def assert_each_is_better_than_the_one_before(rows: list[Row], descending: bool) -> None:
    compare = comparison(descending, newest_first=False)
    last: dict[object, Row] = {}
    for each in rows:
        assert each["key"] not in last or compare(each, last[each["key"]]) < 0
        last[each["key"]] = each


def row(number: int, price: float | None) -> Row:
    return {"key": "k", "id": number, "price": price, "note": None}


def counted() -> Pipeline:
    """Counts the remaining rows; the count does not depend on where batches end."""
    env = Environment()
    rows = env.from_rows([], SCHEMA, uid="rows")
    top = rows.key_by("key").top_n(3, order_by="price", uid="top")
    top.key_by("note").aggregate(n=count(), uid="n").collect(uid="out")
    return env.build()
