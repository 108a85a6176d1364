"""One row of each key: the one that plain Python would keep, across cuts and rescaling."""

import random
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.ranking.deduplicate import KeepBest, KeepFirst
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.state.backend import BackendFactory
from pipelines.state.entries import StateTtlConfig
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, KeyedStream
from pipelines.testing import OperatorHarness, assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Host, Row
from tests.unit.operators.ranked_models import (
    KEYS,
    SCHEMA,
    WHOLE,
    applied,
    as_counter,
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


@pytest.mark.parametrize("seed", range(20))
def test_the_first_row_of_each_key_is_emitted_once(backends: BackendFactory, seed: int) -> None:
    rng = random.Random(seed)
    first = Subtasks(lambda: KeepFirst(KEYS), [SCHEMA], [KEYS], 2, backends=backends)

    rows = send_with_cuts(first, rng)

    expected = {row["key"]: row for row in reversed(rows)}
    assert as_counter(first.emitted.rows) == as_counter(list(expected.values()))


@pytest.mark.parametrize("seed", range(20))
def test_the_last_row_of_each_key_remains(backends: BackendFactory, seed: int) -> None:
    rng = random.Random(seed)
    order = Order(None, descending=True, newest_first=True)
    last = Subtasks(lambda: KeepBest(KEYS, order), [SCHEMA], [KEYS], 2, backends=backends)

    rows = send_with_cuts(last, rng)

    expected = {row["key"]: row for row in rows}
    assert applied(last.emitted.rows) == as_counter(list(expected.values()))


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_the_first_or_last_row_by_a_column_remains(seed: int, is_last: bool) -> None:
    rng = random.Random(seed)
    order = Order("price", descending=is_last, newest_first=is_last)
    schema = rng.choice([SCHEMA, WHOLE])
    kept = Subtasks(lambda: KeepBest(KEYS, order), [schema], [KEYS], 2)

    rows = send_with_cuts(kept, rng, schema)

    expected = first_n(rows, 1, descending=is_last, newest_first=is_last)
    assert applied(kept.emitted.rows) == as_counter(list(chain(*expected.values())))


def test_after_the_time_to_live_the_next_row_of_a_key_counts_as_first() -> None:
    host = Host(lambda: KeepFirst(KEYS, StateTtlConfig(100)), [SCHEMA])
    host.send([row("a", 1)])
    host.now_ms = 99
    host.send([row("a", 2), row("b", 3)])

    host = host.recovered()
    host.now_ms = 100
    host.send([row("a", 4), row("b", 5)])
    host.now_ms = 199
    host.send([row("c", 6)])

    assert [each["id"] for each in host.rows] == [1, 3, 4, 6]
    assert host.state.statistics().rows == 2  # of a and c


def test_a_time_to_live_may_be_added_later() -> None:
    host = Host(lambda: KeepFirst(KEYS), [SCHEMA])
    host.send([row("a", 1)])
    host._create = lambda: KeepFirst(KEYS, StateTtlConfig(100))

    host = host.recovered()
    host.send([row("a", 2)])
    host.now_ms = 100
    host.send([row("a", 3)])

    assert [each["id"] for each in host.rows] == [1, 3]


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("seed", range(3))
def test_deduplicated_rows_are_exact_under_kills(keep: str, seed: int) -> None:
    env = Environment()
    rows = env.from_rows([], SCHEMA, uid="rows")
    kept = rows.key_by("key").deduplicate(keep=keep, order_by="id", uid="kept")
    kept.collect(uid="out")
    given = [{"key": f"k{n % 7}", "id": n, "price": 1.0, "note": ""} for n in range(300)]

    assert_exactly_once(env.build(), given, kills=seed, newest_by={"out": ["key"]})


def test_deduplication_survives_a_rescale_in_the_middle_of_the_stream() -> None:
    env = Environment()
    rows = env.from_rows([], SCHEMA, uid="rows")
    kept = rows.key_by("key").deduplicate(uid="kept").collect(uid="out")
    assert not kept.is_changelog
    harness = OperatorHarness(env.build(), "kept", parallelism=2)
    harness.push([row(key, 1) for key in "abc"])

    wider = OperatorHarness(env.build(), "kept", parallelism=3, restore=harness.snapshot())
    wider.push([row(key, 2) for key in "abcd"])

    assert [each["key"] for each in wider.output()] == ["d"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep": "best"}, "no 'best' row to keep"),
        ({"keep": "last", "state_ttl": timedelta(1)}, "could not be taken back"),
        ({"order_by": "id", "state_ttl": timedelta(1)}, "could not be taken back"),
        ({"state_ttl": timedelta(0)}, "time-to-live of 0 ms"),
        ({"order_by": "cost"}, "no column 'cost'"),
    ],
)
def test_what_cannot_be_deduplicated_is_refused_by_uid(options: dict, sentence: str) -> None:
    with pytest.raises(Rejected, match=f"'kept' cannot be built: .*{sentence}"):
        keyed().deduplicate(**options, uid="kept")


def keyed() -> KeyedStream:
    return Environment().from_rows([], SCHEMA, uid="rows").key_by("key")


def row(key: str, number: int) -> Row:
    return {"key": key, "id": number, "price": None, "note": None}
