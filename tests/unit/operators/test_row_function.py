"""Row functions emit the columns that they declared, and a failure names its row."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators import rows
from pipelines.operators.stateless import FilterRows, FlatMapRows, MapRows
from tests.unit.operators.harness import Host

if TYPE_CHECKING:
    from pipelines.operators.operator import Operator

WORDS = pa.schema([("text", pa.string()), ("number", pa.int64())])
LENGTHS = pa.schema([("length", pa.int32())])


def test_each_row_becomes_one_row_in_order() -> None:
    host = Host(lambda: MapRows(lambda row: {"length": len(row["text"])}, LENGTHS), [WORDS])

    host.send([{"text": "a", "number": 1}, {"text": "", "number": None}])

    assert host.emitted == [[{"length": 1}, {"length": 0}]]


def test_a_row_becomes_any_number_of_rows() -> None:
    host = Host(
        lambda: FlatMapRows(
            lambda row: ({"length": len(word)} for word in row["text"].split()), LENGTHS
        ),
        [WORDS],
    )

    host.send([{"text": "to be or", "number": 1}, {"text": "", "number": 2}])
    host.send([{"text": "", "number": 1}])

    assert host.emitted == [[{"length": 2}, {"length": 2}, {"length": 2}]]


def test_a_row_that_expands_to_many_rows_is_emitted_in_bounded_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "MAX_OUTPUT_ROWS", 10)
    host = Host(
        lambda: FlatMapRows(lambda row: ({"length": n} for n in range(25)), LENGTHS), [WORDS]
    )

    host.send([{"text": "", "number": 1}])

    assert [len(batch) for batch in host.emitted] == [10, 10, 5]


def test_keeps_the_rows_for_which_the_function_is_true() -> None:
    host = Host(lambda: FilterRows(lambda row: row["number"]), [WORDS])

    host.send([{"text": "a", "number": 0}, {"text": "b", "number": 2}, {"text": "c"}])
    host.send([{"text": "a", "number": 0}])

    assert host.emitted == [[{"text": "b", "number": 2}]]


@pytest.mark.parametrize(
    "create",
    [
        lambda: MapRows(lambda row: {"length": 1 // row["number"]}, LENGTHS),
        lambda: FlatMapRows(lambda row: [{"length": 1 // row["number"]}], LENGTHS),
        lambda: FilterRows(lambda row: 1 // row["number"]),
    ],
    ids=["map", "flat map", "filter"],
)
def test_the_row_that_raised_is_identified(create: "type[Operator]") -> None:
    host = Host(create, [WORDS])
    faulty = [{"text": "", "number": number} for number in (3, 2, 0, 1)]
    host.send(faulty[:2])

    with pytest.raises(ZeroDivisionError):
        host.send(faulty)

    assert host.operator.failing_row(pa.RecordBatch.from_pylist(faulty, schema=WORDS)) == 2


def test_a_row_with_other_columns_is_refused_by_name() -> None:
    host = Host(lambda: MapRows(lambda row: {"size": 1}, LENGTHS), [WORDS])

    with pytest.raises(Rejected, match=r"columns \(size\) where it declared \(length\)"):
        host.send([{"text": "", "number": 1}])


MOMENTS = [0, -1, None, 1_700_000_000_123]


@pytest.mark.parametrize(
    "column",
    [
        *(pa.array(MOMENTS, pa.timestamp(unit, "UTC")) for unit in ("ms", "us")),
        pa.array([0, None, 1_700_000_000], pa.timestamp("s", "UTC")),
        pa.array(MOMENTS, pa.timestamp("ms")),
        pa.array(MOMENTS, pa.timestamp("ms", "Europe/Berlin")),
        pa.array(MOMENTS, pa.timestamp("ms", "UTC")).slice(1, 2),
        pa.array([], pa.timestamp("ms", "UTC")),
        pa.array([1.5, None, float("inf")]),
        pa.array(["a", None, ""]),
        pa.array([[1, None], None, []]),
        pa.array([{"a": 1, "b": "x"}, None]),
        pa.array([True, None, False]),
        pa.nulls(2),
        pa.array(["x", None, "y"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_a_row_has_the_values_that_arrow_gives(column: pa.Array) -> None:
    batch = pa.record_batch({"number": pa.array(range(len(column))), "column": column})

    found = list(rows.rows_of(batch))

    assert found == batch.to_pylist()
    for given, expected in zip(found, batch.to_pylist(), strict=True):
        assert type(given["column"]) is type(expected["column"])
        assert getattr(given["column"], "tzinfo", None) is getattr(
            expected["column"], "tzinfo", None
        )


def test_a_time_beyond_pythons_years_raises_the_same_error_as_arrow() -> None:
    for beyond in (2**62, 2**53):
        column = pa.array([1, beyond], pa.timestamp("ms", "UTC"))

        with pytest.raises((OverflowError, ValueError)) as of_arrow:
            column.to_pylist()
        with pytest.raises(of_arrow.type):
            rows.python_values(column)


def test_rows_come_in_order_from_a_long_batch_even_without_columns() -> None:
    many = pa.record_batch({"number": pa.array(range(3_000))})

    assert list(rows.rows_of(many)) == many.to_pylist()
    assert list(rows.rows_of(many.select([]))) == many.select([]).to_pylist()
