"""Kafka records: what they contain, and which columns can become their value and key."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipelines.connectors.kafka.producer import RecordForm
from pipelines.domain.errors import Rejected

BATCH = pa.record_batch(
    {
        "id": pa.array([7, None]),
        "name": pa.array(["a\nb", None]),
        "wide": pa.array(["x", "y"], pa.large_string()),
        "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * 2, pa.timestamp("ms", tz="UTC")),
        "x": pa.array([float("nan"), 0.5]),
    }
)


def test_each_row_becomes_its_own_json_object() -> None:
    ((first, second),) = RecordForm().columns(BATCH)

    assert json.loads(first or b"") == {
        "id": 7,
        "name": "a\nb",
        "wide": "x",
        "at": "2026-01-02T00:00:00.000Z",
        "x": None,
    }
    assert json.loads(second or b"")["x"] == 0.5


def test_one_column_becomes_the_value_and_another_the_key() -> None:
    values, keys = RecordForm(value="name", key="id").columns(BATCH)

    assert (values, keys) == ([b"a\nb", None], [b"7", None])


def test_a_slice_of_a_batch_yields_only_its_own_records() -> None:
    assert RecordForm(value="wide", key="name").columns(BATCH.slice(1)) == [[b"y"], [None]]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (RecordForm(value="x"), "The value column x of topic out holds double; Kafka takes text"),
        (RecordForm(value="no"), "The value column no of topic out is not in the results."),
        (RecordForm(value="name", key="at"), "The key column at of topic out holds timestamp"),
        (RecordForm(), "Column span of type duration.s. cannot be written as JSON to topic out."),
    ],
)
def test_a_column_that_does_not_fit_is_named(form: RecordForm, problem: str) -> None:
    schema = BATCH.schema.append(pa.field("span", pa.duration("s")))

    with pytest.raises(Rejected, match=problem):
        form.check(schema, "out")
