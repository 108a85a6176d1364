"""Halving a batch finds the row that a function fails on, with few calls."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.operators.stateless import first_failing_row


@pytest.mark.parametrize("seed", range(50))
def test_the_first_row_that_fails_by_itself_is_found(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.randint(1, 300)
    poison = set(rng.sample(range(rows), rng.randint(1, min(rows, 5))))
    calls = 0

    def function(batch: pa.RecordBatch) -> None:
        nonlocal calls
        calls += 1
        if poison & set(batch.column(0).to_pylist()):
            raise ValueError

    assert first_failing_row(function, pa.record_batch({"n": range(rows)})) == min(poison)
    assert calls <= rows.bit_length() + 1


def test_a_failure_of_the_whole_batch_is_blamed_on_no_row() -> None:
    def function(batch: pa.RecordBatch) -> None:
        if pc.sum(batch.column(0)).as_py() > 5:
            raise ValueError

    assert first_failing_row(function, pa.record_batch({"n": [1, 2, 3]})) == -1
