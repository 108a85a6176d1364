"""Grouping gives the groups of a dictionary, with keys in order of first appearance."""

import random

import pyarrow as pa
import pytest

from pipelines.operators.columns import group

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("flag", pa.bool_())])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("columns", [["number"], ["text"], ["text", "number"], SCHEMA.names])
def test_rows_are_grouped_by_all_columns_with_null_as_a_key(columns: list[str], seed: int) -> None:
    batch = random_batch(random.Random(seed))

    groups = group(batch, columns)

    rows = [tuple(row.values()) for row in batch.select(columns).to_pylist()]
    keys = [tuple(row.values()) for row in groups.keys.to_pylist()]
    assert keys == list(dict.fromkeys(rows))
    assert [keys[index] for index in groups.index] == rows


@pytest.mark.parametrize("columns", [["number"], ["text", "number"]])
def test_no_rows_make_no_groups(columns: list[str]) -> None:
    groups = group(pa.RecordBatch.from_pylist([], schema=SCHEMA), columns)

    assert (groups.count, len(groups.index)) == (0, 0)
    assert groups.keys.schema.names == columns


def test_a_slice_is_grouped_by_its_own_rows_only() -> None:
    batch = pa.record_batch({"number": pa.array([1, 2, 2, 3])})

    groups = group(batch.slice(1, 2), ["number"])

    assert groups.keys.to_pylist() == [{"number": 2}]
    assert groups.index.tolist() == [0, 0]


def random_batch(rng: random.Random) -> pa.RecordBatch:
    rows = [
        {
            "number": rng.choice([None, 1, 2, -3]),
            "text": rng.choice([None, "", "a", "b"]),
            "flag": rng.choice([None, True, False]),
        }
        for _ in range(rng.randint(1, 60))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
