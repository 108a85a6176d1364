"""Filter: expressions and mask functions keep the same rows, and null is not true."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.stateless import Filter, Predicate
from tests.unit.operators.harness import Host

SCHEMA = pa.schema([("x", pa.int64()), ("name", pa.string())])
ROWS = [{"x": 1, "name": "a"}, {"x": None, "name": "b"}, {"x": 3, "name": "c"}]


@pytest.mark.parametrize(
    "predicate",
    [pc.field("x") > 1, lambda batch: pc.greater(batch.column("x"), 1)],
    ids=["expression", "function"],
)
def test_only_rows_for_which_the_predicate_is_true_pass(predicate: Predicate) -> None:
    host = Host(lambda: Filter(predicate), [SCHEMA])

    host.send(ROWS)

    assert host.rows == [{"x": 3, "name": "c"}]


def test_a_batch_filtered_to_nothing_is_not_passed_on() -> None:
    host = Host(lambda: Filter(pc.field("x") > 100), [SCHEMA])

    host.send(ROWS)

    assert host.emitted == []


@pytest.mark.parametrize(
    ("predicate", "sentence"),
    [
        (pc.field("missing") > 1, "no column 'missing'; the columns are x, name"),
        (lambda batch: batch.column("missing"), "missing"),
        (pc.field("name") > 1, "string"),
        (pc.field("x") + 1, "gives int64 values where it must give bool"),
    ],
)
def test_a_predicate_that_does_not_fit_is_refused(predicate: Predicate, sentence: str) -> None:
    with pytest.raises(Rejected) as refusal:
        Filter(predicate).output_schema([SCHEMA])

    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
