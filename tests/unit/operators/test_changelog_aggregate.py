"""Minimum, maximum and distinct counts of a changelog are those of the rows that remain."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import Aggregate
from pipelines.operators.aggregating.changelog_aggregate import ChangelogAggregate
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, Pipeline, count, count_distinct, max, min, sum
from pipelines.testing import assert_exactly_once, run_with_kills
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.harness import Host, Row
from tests.unit.operators.subtasks import Subtasks

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.int32()),
        ("ratio", pa.float64()),
        ("at", pa.timestamp("ms", "UTC")),
        ("name", pa.string()),
        ("row_kind", pa.string()),
    ]
)
AGGREGATES: dict[str, Aggregate] = {
    "highest": max("number"),
    "n": count(),
    "lowest": min("number"),
    "numbers": count_distinct("number"),
    "least_ratio": min("ratio"),
    "greatest_ratio": max("ratio"),
    "first": min("at"),
    "names": count_distinct("name"),
    "total": sum("number"),
}
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("seed", range(10))
def test_results_cover_exactly_the_remaining_rows(backend: str, seed: int) -> None:
    with rocksdb_backends(TINY_BYTES) as rocksdb:
        backends = HashMapBackend if backend == "hashmap" else rocksdb
        rng = random.Random(seed)
        subtasks = Subtasks(aggregating, [SCHEMA], [("key",)], 2, backends=backends)
        left: list[Row] = []
        newest: dict[object, Row] = {}
        for _ in range(rng.randint(1, 10)):
            subtasks.send([random_change(rng, left) for _ in range(rng.randint(1, 40))])

            newest |= {row["key"]: row for row in subtasks.emitted.take()}
            assert newest == {key: aggregated(key, left) for key in newest}
            assert newest.keys() >= {row["key"] for row in left}
            if rng.random() < 0.4:
                subtasks.restore(rng.randint(1, 3))


def test_a_value_counts_until_its_last_row_is_retracted() -> None:
    host = Host(aggregating, [SCHEMA])

    host.send([row(number=7), row(number=7), row(number=3)])
    host.send([row(number=7, kind="-D")])
    host.send([row(number=7, kind="-U")])
    host.send([row(number=3, kind="-D")])

    found = [(each["lowest"], each["highest"], each["numbers"]) for each in host.rows]
    assert found == [(3, 7, 2), (3, 7, 2), (3, 3, 1), (None, None, 0)]


def test_a_row_retracted_before_it_arrives_counts_once_it_arrives_twice() -> None:
    host = Host(aggregating, [SCHEMA])

    host.send([row(number=7, kind="-D"), row(number=1)])
    host.send([row(number=7)])
    host.send([row(number=7)])

    assert [each["highest"] for each in host.rows] == [1, 1, 7]


def test_nan_is_the_greatest_value_until_it_is_retracted() -> None:
    host = Host(aggregating, [SCHEMA])

    host.send([row(ratio=math.nan), row(ratio=-0.0), row(ratio=2.0)])
    assert math.isnan(host.rows[-1]["greatest_ratio"])
    host.send([row(ratio=math.nan, kind="-D"), row(ratio=0.0, kind="-D")])

    assert (host.rows[-1]["least_ratio"], host.rows[-1]["greatest_ratio"]) == (2.0, 2.0)


def test_retracted_values_leave_no_state() -> None:
    subtasks = Subtasks(aggregating, [SCHEMA], [("key",)])
    rows = [row(number=n, name=str(n), ratio=float(n)) for n in range(50)]

    subtasks.send(rows)
    subtasks.send([{**each, "row_kind": "-D"} for each in rows])

    kept = {state.name: state.rows for state in subtasks.contexts[0].state.cut()}
    assert {name for name, rows in kept.items() if rows} == {
        "totals",
        *(f"{each}.sizes" for each in ("number", "ratio", "at", "name")),
    }


@pytest.mark.parametrize(
    ("aggregates", "sentence"),
    [
        ({"key": max("number")}, "column 'key' would be produced twice"),
        ({"m": max("name")}, "The max of column 'name'"),
        ({"m": max("cost")}, "no column 'cost'"),
        ({"m": max("number"), "n": count("cost")}, "no column 'cost'"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    aggregates: dict[str, Aggregate], sentence: str
) -> None:
    with pytest.raises(Rejected, match=sentence):
        ChangelogAggregate(("key",), aggregates).output_schema([SCHEMA])


def test_the_row_kind_cannot_be_a_key() -> None:
    with pytest.raises(Rejected, match="'row_kind' cannot be a key"):
        ChangelogAggregate(("row_kind",), {"m": max("number")}).output_schema([SCHEMA])


@pytest.mark.parametrize("seed", range(4))
def test_extremes_of_totals_are_exact_under_kills(seed: int) -> None:
    visits = random_visits(seed)

    assert_exactly_once(busiest(), visits, kills=seed, newest_by={"out": ["page"]})


def test_aggregates_of_totals_use_only_the_newest_totals() -> None:
    visits = random_visits(5)

    run = run_with_kills(busiest(), {"visits": visits}, kills=0, kill_count=0)

    counts = Counter((each["page"], each["user"]) for each in visits)
    of_pages = defaultdict(list)
    for (page, _), n in counts.items():
        of_pages[page].append(n)
    newest = {each["page"]: each for each in run.table("out").to_pylist()}
    assert newest == {
        page: {"page": page, "most": sorted(ns)[-1], "least": sorted(ns)[0], "kinds": len(set(ns))}
        for page, ns in of_pages.items()
    }


VISITS = pa.schema([("user", pa.int64()), ("page", pa.string())])


def busiest() -> Pipeline:
    env = Environment()
    visits = env.from_rows([], VISITS, uid="visits")
    totals = visits.key_by("page", "user").aggregate(n=count(), uid="totals")
    newest = totals.key_by("page", "user").deduplicate(keep="last", uid="newest")
    ends = newest.key_by("page").aggregate(
        most=max("n"), least=min("n"), kinds=count_distinct("n"), uid="ends"
    )
    ends.collect(uid="out")
    return env.build()


def random_visits(seed: int) -> list[Row]:
    rng = random.Random(seed)
    return [{"user": rng.randrange(9), "page": rng.choice("abc")} for _ in range(120)]


def aggregating() -> ChangelogAggregate:
    return ChangelogAggregate(("key",), AGGREGATES)


def random_change(rng: random.Random, left: list[Row]) -> Row:
    if left and rng.random() < 0.48:
        return {**left.pop(rng.randrange(len(left))), "row_kind": "-D"}
    maybe: Callable[[object], object] = lambda value: None if rng.random() < 0.1 else value  # noqa: E731
    left.append(
        row(
            key=rng.choice(["a", "b", None]),
            number=maybe(rng.randint(-4, 4)),
            ratio=maybe(rng.randint(-3, 3) / 2),
            at=maybe(START + timedelta(seconds=rng.randrange(5))),
            name=maybe(rng.choice("xyz")),
        )
    )
    return left[-1]


def row(kind: str = "+I", **values: object) -> Row:
    given: Row = {"key": "a", "number": 0, "ratio": 0.5, "at": START, "name": "x"}
    return {**given, **values, "row_kind": kind}


def aggregated(key: object, left: list[Row]) -> Row:
    rows = [each for each in left if each["key"] == key]
    known = {
        name: sorted(each[name] for each in rows if each[name] is not None)
        for name in ("number", "ratio", "at", "name")
    }
    end: Callable[[str, int], object] = lambda name, at: known[name][at] if known[name] else None  # noqa: E731
    total = None
    for number in known["number"]:
        total = number + (total or 0)
    return {
        "key": key,
        "highest": end("number", -1),
        "n": len(rows),
        "lowest": end("number", 0),
        "numbers": len(set(known["number"])),
        "least_ratio": end("ratio", 0),
        "greatest_ratio": end("ratio", -1),
        "first": end("at", 0),
        "names": len(set(known["name"])),
        "total": total,
    }
