"""Count windows, compared with a plain list of each key's rows."""

import builtins
import random
from collections.abc import Iterator
from contextlib import nullcontext

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.windowing import count_windows
from pipelines.stream import Environment, Pipeline, count, max, mean, sum
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends

VALUES = pa.schema([("key", pa.string()), ("value", pa.int64())])
KINDS = [(1, None), (4, None), (4, 2), (6, 4), (2, 5), (5, 1), (3, 7)]
Results = dict[object, list[dict[str, object]]]
"""The results of each key, in the order in which they were emitted."""


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    is_on_disk = request.param == "rocksdb"
    with rocksdb_backends(TINY_BYTES) if is_on_disk else nullcontext() as backends:
        if is_on_disk:
            monkeypatch.setattr("pipelines.testing.operators.HashMapBackend", backends)
        yield


@pytest.mark.parametrize(("size", "slide"), KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_count_windows_match_a_list_of_each_keys_rows_across_restores(
    seed: int, size: int, slide: int | None, backend: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_windows, "MERGED_MAX", 10)
    rng = random.Random(seed)
    pipeline, every = windowed(size, slide), slide or size
    host = OperatorHarness(pipeline, "windows", parallelism=rng.randint(1, 3))
    arrived: dict[object, list[int]] = {}

    for _ in range(25):
        rows = random_rows(rng)
        host.push(rows)
        expected: Results = {}
        for row in rows:
            values = arrived.setdefault(row["key"], [])
            values.append(row["value"])
            if len(values) % every == 0:
                result = aggregated(row["key"], values[-size:])
                expected.setdefault(row["key"], []).append(result)
        assert by_key(host.output()) == expected
        if rng.random() < 0.3:
            parallelism = rng.randint(1, 3)
            host = OperatorHarness(
                pipeline, "windows", parallelism=parallelism, restore=host.snapshot()
            )

    kept = len(host.state("panes")) if "panes" in host.state_names else 0
    assert kept <= len(arrived) * (size + every), "panes behind the windows are deleted"


def test_panes_that_no_window_needs_are_deleted() -> None:
    host = OperatorHarness(windowed(4, 2), "windows")

    host.push([{"key": "a", "value": n} for n in range(11)])

    assert [row["__pane"] for row in host.state("panes")] == [4, 5]
    assert [row["n"] for row in host.output()] == [2, 4, 4, 4, 4]


def test_windows_of_all_keys_are_emitted_in_the_order_of_their_last_rows() -> None:
    host = OperatorHarness(windowed(2, None), "windows")

    host.push([{"key": key, "value": n} for n, key in enumerate("abcbacc")])

    assert [(row["key"], row["total"]) for row in host.output()] == [("b", 4), ("a", 4), ("c", 7)]


def test_a_result_has_keys_and_aggregates_and_no_event_time() -> None:
    stream = Environment().from_rows([], VALUES, uid="in")

    totals = stream.key_by("key").count_window(3).aggregate({"a sum": sum("value")}, uid="totals")

    assert totals.schema.names == ["key", "a sum"]
    assert totals.time_column is None
    with pytest.raises(Rejected, match="A window of 0 rows every 0 rows cannot be"):
        stream.key_by("key").count_window(0)
    with pytest.raises(Rejected, match="A window of 3 rows every -1 rows cannot be"):
        stream.key_by("key").count_window(3, -1)
    with pytest.raises(Rejected, match="no column 'missing'"):
        stream.key_by("key").count_window(3).aggregate(n=sum("missing"), uid="x")


@pytest.mark.parametrize("seed", range(4))
def test_kills_neither_lose_nor_duplicate_a_row_of_a_window(seed: int) -> None:
    rows = [{"key": "abc"[n % 3], "value": n} for n in range(360)]

    table = run_with_kills(windowed(5, None), rows, kills=seed, parallelism=1 + seed % 3).table()

    totals = table.group_by("key").aggregate([("n", "sum"), ("total", "sum")]).to_pylist()
    assert sorted((row["key"], row["n_sum"], row["total_sum"]) for row in totals) == [
        (key, 120, builtins.sum(range(first, 360, 3))) for first, key in enumerate("abc")
    ]


@pytest.mark.parametrize("seed", range(4))
def test_sliding_windows_of_equal_rows_survive_kills(seed: int) -> None:
    """The rows of a key are equal, because rows from several splits have no order."""
    rows = [{"key": "abc"[n % 3], "value": n % 3} for n in range(300)]

    assert_exactly_once(windowed(6, 4), rows, kills=seed, parallelism=1 + seed % 3)


def windowed(size: int, slide: int | None) -> Pipeline:
    env = Environment()
    windows = env.from_rows([], VALUES, uid="in").key_by("key").count_window(size, slide)
    windows.aggregate(
        n=count(), total=sum("value"), average=mean("value"), highest=max("value"), uid="windows"
    ).collect(uid="out")
    return env.build()


def random_rows(rng: random.Random) -> list[dict]:
    return [
        {"key": rng.choice([None, "a", "b", "c"]), "value": rng.randint(-9, 9)}
        for _ in range(rng.choice([1, 3, 30]))
    ]


def aggregated(key: object, values: list[int]) -> dict[str, object]:
    total = builtins.sum(values)
    average, highest = total / len(values), builtins.max(values)
    return {"key": key, "n": len(values), "total": total, "average": average, "highest": highest}


def by_key(rows: list[dict]) -> Results:
    found: Results = {}
    for row in rows:
        found.setdefault(row["key"], []).append(row)
    return found
