"""Distinct rows, and counts of distinct values, equal those of plain Python's sets."""

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import CountDistinct
from pipelines.operators.ranking.deduplicate import MarkFirstValues
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, Stream, count, count_distinct, tumbling
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Row
from tests.unit.operators.subtasks import Subtasks

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("user", pa.int64()),
        ("page", pa.string()),
        ("at", pa.timestamp("ms", "UTC")),
        ("price", pa.float64()),
        ("is_new", pa.bool_()),
    ]
)
CONDITIONS = (None, "is_new", "is_old")
KEYS = ("key",)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("seed", range(15))
def test_the_first_row_with_a_value_is_marked_for_each_key(backend: str, seed: int) -> None:
    with rocksdb_backends(TINY_BYTES) as rocksdb:
        backends = HashMapBackend if backend == "hashmap" else rocksdb
        rng = random.Random(seed)
        marking = Subtasks(
            lambda: MarkFirstValues(KEYS, [CountDistinct("user"), CountDistinct("page")]),
            [SCHEMA],
            [KEYS],
            2,
            backends=backends,
        )
        seen: set[tuple] = set()
        for _ in range(rng.randint(1, 8)):
            rows = [random_row(rng) for _ in range(rng.randint(1, 30))]
            marking.send(rows)

            marked = marking.emitted.take()
            assert len(marked) == len(rows)
            for column in ("user", "page"):
                values = {(column, r["key"], r[column]) for r in rows if r[column] is not None}
                firsts = [(column, r["key"], r[column]) for r in marked if r[f"__first__{column}"]]
                assert sorted(firsts, key=str) == sorted(values - seen, key=str)
                seen |= values
            if rng.random() < 0.3:
                marking.restore(rng.randint(1, 3))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("seed", range(15))
def test_the_first_row_with_a_value_is_marked_under_each_condition(backend: str, seed: int) -> None:
    with rocksdb_backends(TINY_BYTES) as rocksdb:
        backends = HashMapBackend if backend == "hashmap" else rocksdb
        rng = random.Random(seed)
        conditions = rng.sample(CONDITIONS, rng.randint(1, 3))
        schema = SCHEMA.append(pa.field("is_old", pa.bool_()))
        counts = [CountDistinct("user", each) for each in conditions]
        marking = Subtasks(
            lambda: MarkFirstValues(KEYS, counts), [schema], [KEYS], 2, backends=backends
        )
        seen: dict[str, set[tuple]] = {count.mark: set() for count in counts}
        for _ in range(rng.randint(1, 8)):
            rows = [
                random_row(rng) | {"is_old": rng.choice([True, False, None])}
                for _ in range(rng.randint(1, 30))
            ]
            marking.send(rows)

            marked = marking.emitted.take()
            assert len(marked) == len(rows)
            for count in counts:
                values = {
                    (row["key"], row["user"])
                    for row in rows
                    if row["user"] is not None and (count.where is None or row[count.where])
                }
                firsts = [row for row in marked if row[count.mark]]
                assert all(count.where is None or row[count.where] for row in firsts)
                met = sorted((row["key"], row["user"]) for row in firsts)
                assert met == sorted(values - seen[count.mark])
                seen[count.mark] |= values
            if rng.random() < 0.3:
                marking.restore(rng.randint(1, 3))


@pytest.mark.parametrize("seed", range(4))
def test_conditional_counts_cover_only_rows_that_meet_the_condition(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(rng.randint(1, 400))]
    events = stream()
    totals = events.key_by("key").aggregate(
        n=count(where="is_new"),
        known=count("user", where="is_new"),
        users=count_distinct("user", where="is_new"),
        all_users=count_distinct("user"),
        uid="totals",
    )
    totals.collect(uid="counts")

    run = run_with_kills(events.environment.build(), rows, kills=seed, kill_count=seed)

    newest = {row["key"]: row for row in run.table("counts").to_pylist()}
    for key in {row["key"] for row in rows}:
        of_key = [row for row in rows if row["key"] == key]
        new = [row for row in of_key if row["is_new"]]
        assert newest[key] == {
            "key": key,
            "n": len(new),
            "known": sum(row["user"] is not None for row in new),
            "users": len({row["user"] for row in new} - {None}),
            "all_users": len({row["user"] for row in of_key} - {None}),
        }


@pytest.mark.parametrize("seed", range(4))
def test_distinct_rows_and_counts_match_python_sets(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(rng.randint(1, 400))]
    events = stream()
    events.distinct("key", "page", uid="pages").collect(uid="distinct")
    totals = events.key_by("key").aggregate(
        n=count(), users=count_distinct("user"), pages=count_distinct("page"), uid="totals"
    )
    totals.collect(uid="counts")

    run = run_with_kills(events.environment.build(), rows, kills=seed, kill_count=0)

    found = [(row["key"], row["page"]) for row in run.table("distinct").to_pylist()]
    assert sorted(found, key=str) == sorted({(r["key"], r["page"]) for r in rows}, key=str)
    newest = {row["key"]: row for row in run.table("counts").to_pylist()}
    assert newest == {key: counted(key, rows) for key in {row["key"] for row in rows}}


@pytest.mark.parametrize("seed", range(3))
def test_distinct_rows_and_counts_are_exact_under_kills(seed: int) -> None:
    rng = random.Random(7)
    rows = [random_row(rng) for _ in range(300)]
    events = stream()
    events.distinct("key", "user", "page", uid="pages").collect(uid="distinct")
    totals = events.key_by("key").aggregate(users=count_distinct("user"), uid="totals")
    totals.collect(uid="counts")

    assert_exactly_once(events.environment.build(), rows, kills=seed, newest_by={"counts": ["key"]})


def test_distinct_without_columns_compares_whole_rows_and_keeps_event_time() -> None:
    events = stream().map_batches(lambda b: b, SCHEMA.remove(4), uid="keys")

    whole, users = events.distinct(uid="whole"), events.distinct("user", uid="users")

    assert whole.schema.names == ["key", "user", "page", "at", "is_new"]
    assert (whole.time_column, users.time_column) == ("at", None)


def test_the_local_half_before_the_exchange_keeps_no_state() -> None:
    events = stream()
    events.distinct("key", uid="keys").collect(uid="out")
    harness = OperatorHarness(events.environment.build(), "keys.local")

    harness.push([random_row(random.Random(1)) | {"key": key} for key in "abab"])

    assert [row["key"] for row in harness.output()] == ["a", "b"]
    assert harness.state_names == []


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda s: s.distinct("price", uid="next"), "key column 'price' has type double"),
        (lambda s: s.distinct("cost", uid="next"), "no column 'cost'"),
        (lambda s: s.distinct("key", "key", uid="next"), "produced twice"),
        (
            lambda s: s.key_by("key").aggregate(n=count_distinct("cost"), uid="next"),
            "no column 'cost'",
        ),
        (
            lambda s: s.key_by("key").aggregate(n=count_distinct("price"), uid="next"),
            "key column 'price' has type double",
        ),
        (
            lambda s: s.key_by("key").aggregate(n=count(where="user"), uid="next"),
            "The condition 'user' is int64; `where` takes a boolean column",
        ),
        (
            lambda s: s.key_by("key").aggregate(n=count_distinct("user", where="cost"), uid="next"),
            "no column 'cost'",
        ),
        (
            lambda s: (
                s.key_by("key")
                .window(tumbling(minutes=1))
                .aggregate(n=count_distinct("user", where="is_new"), uid="next")
            ),
            r"count_distinct\('user'\) takes `where` only for running totals of records",
        ),
        (
            lambda s: (
                s.key_by("key")
                .deduplicate(keep="last", uid="newest")
                .key_by("key")
                .aggregate(n=count_distinct("user", where="is_new"), uid="next")
            ),
            r"count_distinct\('user'\) takes `where` only for running totals of records",
        ),
        (
            lambda s: (
                s.key_by("key").count_window(9).aggregate(n=count_distinct("user"), uid="next")
            ),
            "not in windows of a number of rows",
        ),
        (
            lambda s: (
                s.key_by("key")
                .window(tumbling(minutes=1))
                .aggregate(n=count_distinct("key"), uid="next")
            ),
            "'key' has one value in each window of a key",
        ),
        (
            lambda s: (
                s.key_by("key")
                .window(tumbling(minutes=1))
                .aggregate(n=count_distinct("price"), uid="next")
            ),
            "key column 'price' has type double",
        ),
    ],
)
def test_what_cannot_be_distinct_is_refused_by_uid(
    read: Callable[[Stream], object], sentence: str
) -> None:
    with pytest.raises(Rejected, match=f"'next' cannot be built: .*{sentence}"):
        read(stream())


def stream() -> Stream:
    return Environment().from_rows([], SCHEMA, uid="rows", timestamp_column="at")


def random_row(rng: random.Random) -> Row:
    return {
        "key": rng.choice("abcdef"),
        "user": rng.choice([None, *range(9)]),
        "page": rng.choice([None, "", "x", "y"]),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "price": 1.0,
        "is_new": rng.choice([True, False, None]),
    }


def counted(key: object, rows: list[Row]) -> Row:
    of_key = [row for row in rows if row["key"] == key]
    users = {row["user"] for row in of_key} - {None}
    pages = {row["page"] for row in of_key} - {None}
    return {"key": key, "n": len(of_key), "users": len(users), "pages": len(pages)}
