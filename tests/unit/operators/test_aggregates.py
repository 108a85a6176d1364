"""Aggregates give the same answer as SQL, however the rows are split into partial results."""

import builtins
import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import Aggregate, count, max, mean, min, sum
from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.columns import group

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("whole", pa.int32()),
        ("real", pa.float64()),
        ("time", pa.timestamp("ms", "UTC")),
        ("text", pa.string()),
        ("unsigned", pa.uint64()),
    ]
)
AGGREGATES = {
    "rows": count(),
    "reals": count("real"),
    "whole_sum": sum("whole"),
    "real_sum": sum("real"),
    "whole_mean": mean("whole"),
    "whole_max": max("whole"),
    "real_min": min("real"),
    "real_max": max("real"),
    "time_min": min("time"),
}


@pytest.mark.parametrize("seed", range(30))
def test_any_split_into_partial_results_gives_the_same_answer(seed: int) -> None:
    rng = random.Random(seed)
    batch = random_batch(rng)
    aggregation = Aggregation.of(("key",), AGGREGATES, SCHEMA)

    partials = [partial(aggregation, piece) for piece in random_pieces(rng, batch)]
    together = pa.Table.from_batches(partials).combine_chunks().to_batches()[0]
    groups = group(together, ["key"])
    results = aggregation.results(
        groups.keys, aggregation.reduce(aggregation.lifted(together), groups)
    )

    assert results.schema.equals(aggregation.output_schema)
    assert by_key(results.to_pylist()) == by_key(expected(batch.to_pylist()))


def test_a_key_without_values_has_null_results_and_a_row_count() -> None:
    rows = [{"key": "a"}, {"key": "a"}]
    aggregation = Aggregation.of(("key",), AGGREGATES, SCHEMA)
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    groups = group(batch, ["key"])

    results = aggregation.results(groups.keys, aggregation.reduce(aggregation.lift(batch), groups))

    found = results.to_pylist()[0]
    assert (found.pop("key"), found.pop("rows"), found.pop("reals")) == ("a", 2, 0)
    assert set(found.values()) == {None}


def test_results_have_the_types_of_sql() -> None:
    schema = Aggregation.of(("key",), AGGREGATES, SCHEMA).output_schema
    highest = max("whole").bind(SCHEMA).result([np.array([7]), np.array([1])])

    assert highest.type == pa.int32()
    assert schema.field("whole_sum").type == pa.int64()
    assert schema.field("whole_mean").type == pa.float64()
    assert schema.field("whole_max").type == pa.int32()
    assert schema.field("time_min").type == pa.timestamp("ms", "UTC")


def test_a_sum_of_integers_beyond_the_precision_of_a_double_is_exact() -> None:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    aggregation = Aggregation.of(("key",), {"total": sum("n")}, schema)
    batch = pa.record_batch([pa.array([1, 1]), pa.array([2**53, 1])], schema=schema)

    assert partial(aggregation, batch).column("total__value").to_pylist() == [2**53 + 1]


@pytest.mark.parametrize(
    ("aggregate", "sentence"),
    [
        (lambda: sum("missing"), "no column 'missing'"),
        (lambda: count("missing"), "no column 'missing'"),
        (lambda: sum("text"), "sum of column 'text' (string) is undefined"),
        (lambda: mean("time"), "mean of column 'time'"),
        (lambda: max("text"), "max of column 'text'"),
        (lambda: sum("unsigned"), "sum of column 'unsigned'"),
    ],
)
def test_an_unusable_column_is_refused_by_name(
    aggregate: Callable[[], Aggregate], sentence: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        Aggregation.of(("key",), {"result": aggregate()}, SCHEMA)

    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "aggregates", "sentence"),
    [
        (("missing",), {"n": count()}, "no column 'missing'"),
        (("key",), {"key": count()}, "'key' would be produced twice"),
        (("key", "key"), {"n": count()}, "'key' would be produced twice"),
        (("key",), {}, "at least one aggregate"),
    ],
)
def test_an_impossible_aggregation_is_refused(
    keys: tuple[str, ...], aggregates: dict[str, Aggregate], sentence: str
) -> None:
    with pytest.raises(Rejected, match=sentence):
        Aggregation.of(keys, aggregates, SCHEMA)


def partial(aggregation: Aggregation, batch: pa.RecordBatch) -> pa.RecordBatch:
    groups = group(batch, aggregation.key_names)
    return aggregation.partials(groups.keys, aggregation.reduce(aggregation.lift(batch), groups))


def random_batch(rng: random.Random) -> pa.RecordBatch:
    rows = [
        {
            "key": rng.choice("abc"),
            "whole": rng.choice([None, rng.randint(-50, 50)]),
            "real": rng.choice([None, rng.randint(-50, 50) / 4]),  # quarters add up exactly
            "time": rng.choice([None, rng.randint(-10_000, 10_000)]),
        }
        for _ in range(rng.randint(1, 40))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def random_pieces(rng: random.Random, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    cuts = sorted({0, batch.num_rows, *(rng.randint(0, batch.num_rows) for _ in range(3))})
    return [batch.slice(a, b - a) for a, b in pairwise(cuts)]


def expected(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Answers the same question row by row, without the code under test."""
    answers = []
    for key in {row["key"] for row in rows}:
        mine = [row for row in rows if row["key"] == key]
        values = {c: [r[c] for r in mine if r[c] is not None] for c in ("whole", "real", "time")}
        whole, real, time = values["whole"], values["real"], values["time"]
        answers.append(
            {
                "key": key,
                "rows": len(mine),
                "reals": len(real),
                "whole_sum": builtins.sum(whole) if whole else None,
                "real_sum": builtins.sum(real) if real else None,
                "whole_mean": builtins.sum(whole) / len(whole) if whole else None,
                "whole_max": builtins.max(whole, default=None),
                "real_min": builtins.min(real, default=None),
                "real_max": builtins.max(real, default=None),
                "time_min": builtins.min(time, default=None),
            }
        )
    return answers


def by_key(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    return {row["key"]: row for row in rows}
