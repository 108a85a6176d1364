"""Reducing gives, after every record, what folding all rows of its key gives."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.processing.process import Reduce
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment
from pipelines.testing import assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Host, Row
from tests.unit.operators.ranked_models import KEYS, SCHEMA, as_counter, random_batches
from tests.unit.operators.subtasks import Subtasks


@pytest.fixture(params=["hashmap", "rocksdb"])
def backends(request: pytest.FixtureRequest) -> Iterator[BackendFactory]:
    if request.param == "hashmap":
        yield HashMapBackend
        return
    with rocksdb_backends(TINY_BYTES) as rocksdb:
        yield rocksdb


@pytest.mark.parametrize("seed", range(15))
def test_each_record_emits_the_reduction_of_all_rows_of_its_key(
    backends: BackendFactory, seed: int
) -> None:
    rng = random.Random(seed)
    reduced = Subtasks(lambda: Reduce(KEYS, joined), [SCHEMA], [KEYS], 2, backends=backends)
    model: dict[object, Row] = {}
    expected = []

    for batch in random_batches(rng):
        reduced.send(batch)
        for row in batch:
            before = model.get(row["key"])
            model[row["key"]] = row if before is None else joined(before, row)
            expected.append(model[row["key"]])
        if rng.random() < 0.3:
            reduced.restore(rng.randint(1, 3))

    assert as_counter(reduced.emitted.rows) == as_counter(expected)


def test_a_function_may_modify_the_reduced_row_in_place() -> None:
    def counting(before: Row, row: Row) -> Row:
        before["id"] += row["id"]
        return before

    host = Host(lambda: Reduce(KEYS, counting), [SCHEMA])

    host.send([row("a", 1), row("a", 2)])
    host.send([row("a", 3)])

    assert [each["id"] for each in host.rows] == [1, 3, 6]


def test_the_failing_row_is_named() -> None:
    def failing(before: Row, row: Row) -> Row:
        raise ZeroDivisionError

    host = Host(lambda: Reduce(KEYS, failing), [SCHEMA])
    rows = [row("a", 1), row("b", 2), row("b", 3)]

    with pytest.raises(ZeroDivisionError):
        host.send(rows)

    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert host.operator.failing_row(batch) == 2


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda before, row: row | {"key": "b"}, r"changed the key from \['a'\] to \['b'\]"),
        (lambda before, row: {"key": "a"}, r"emitted a row with the columns \(key\)"),
        (lambda before, row: row | {"id": "x"}, "'id' that 'under-test' emits is int64"),
    ],
)
def test_a_result_with_another_key_or_schema_is_refused(function, sentence: str) -> None:
    host = Host(lambda: Reduce(KEYS, function), [SCHEMA])

    with pytest.raises(Rejected, match=sentence):
        host.send([row("a", 1), row("a", 2)])


@pytest.mark.parametrize("seed", range(3))
def test_reduced_rows_are_exact_under_kills(seed: int) -> None:
    env = Environment()
    rows = env.from_rows([], SCHEMA, uid="rows")
    rows.key_by("key").reduce(joined, uid="reduced").collect(uid="out")
    given = [row(f"k{n % 7}", n) for n in range(200)]

    assert_exactly_once(env.build(), given, kills=seed, parallelism=1)


def joined(before: Row, row: Row) -> Row:
    return row | {"id": before["id"] * 3 % 1_000_003 + row["id"]}


def row(key: str, number: int) -> Row:
    return {"key": key, "id": number, "price": None, "note": None}
