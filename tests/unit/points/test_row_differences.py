"""Row differences, compared with a plain computation over random tables; then corner cases."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipelines.points.comparison import by_key, by_row

SCHEMA = pa.schema([("key", pa.string()), ("other", pa.int64()), ("value", pa.float64())])
COLUMNS = SCHEMA.names


@pytest.mark.parametrize("seed", range(40))
def test_rows_with_a_key_are_new_gone_or_changed(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (random_rows(rng, rng.randint(0, 30)) for _ in range(2))

    found = by_key(table(left), table(right), COLUMNS[:2], COLUMNS)

    assert found is not None
    assert found.changed is not None
    old, new = ({row[:2]: row[2] for row in rows} for rows in (left, right))
    assert [right[i][:2] for i in found.added] == [row[:2] for row in right if row[:2] not in old]
    assert [left[i][:2] for i in found.removed] == [row[:2] for row in left if row[:2] not in new]
    pairs = {(left[i], right[j]) for i, j in zip(*found.changed, strict=True)}
    assert pairs == {
        ((*key, old[key]), (*key, new[key])) for key in old.keys() & new if old[key] != new[key]
    }


@pytest.mark.parametrize("seed", range(40))
def test_rows_without_a_key_are_compared_by_how_often_they_occur(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (
        [rng.choice([("a", 1, 1.0), ("b", 1, 1.0), (None, None, None)]) for _ in range(size)]
        for size in (rng.randint(0, 9), rng.randint(0, 9))
    )

    found = by_row(table(left), table(right), COLUMNS)

    assert Counter(right[i] for i in found.added) == Counter(right) - Counter(left)
    assert Counter(left[i] for i in found.removed) == Counter(left) - Counter(right)
    assert found.changed is None


def test_a_duplicate_key_cannot_identify_rows() -> None:
    twice, once = table([("a", 1, 1.0), ("a", 1, 2.0)]), table([("a", 1, 1.0)])

    assert by_key(twice, once, ["key"], COLUMNS) is None
    assert by_key(once, twice, ["key"], COLUMNS) is None


def test_null_and_nan_compare_like_other_values() -> None:
    left = table([(None, None, float("nan")), ("x", 0, None)])

    same = by_key(left, left, COLUMNS[:2], COLUMNS)

    assert same is not None
    assert same.changed is not None
    assert [len(same.added), len(same.removed), len(same.changed[0])] == [0, 0, 0]
    other = by_key(left, table([(None, 0, 1.0), ("x", None, None)]), COLUMNS[:2], COLUMNS)
    assert other is not None
    assert (len(other.added), len(other.removed)) == (2, 2)


def test_nested_values_are_compared_too() -> None:
    left = pa.table({"value": pa.array([[1, 2], None, []])})
    right = pa.table({"value": pa.array([[], [1, 2], [3]])})

    found = by_row(left, right, ["value"])

    assert (list(found.added), list(found.removed)) == ([2], [1])


def test_a_column_that_became_wider_is_compared_by_value() -> None:
    left = pa.table({"value": pa.array([1, 2], pa.int32())})
    right = pa.table({"value": pa.array([2, 3], pa.int64())})

    found = by_row(left, right, ["value"])

    assert (list(found.added), list(found.removed)) == ([1], [0])


def test_two_empty_tables_do_not_differ() -> None:
    empty = SCHEMA.empty_table()

    found = by_row(empty, empty, COLUMNS)

    assert np.concatenate([found.added, found.removed]).tolist() == []


def random_rows(rng: random.Random, count: int) -> list[tuple[str | None, int, float]]:
    keys = {(rng.choice(["a", "b", None]), rng.randint(0, 9)) for _ in range(count)}
    return [(text, number, float(rng.randint(0, 1))) for text, number in sorted(keys, key=str)]


def table(rows: list[tuple[str | None, int | None, float | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )
