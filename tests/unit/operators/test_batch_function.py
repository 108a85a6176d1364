"""A batch function emits what it declared, or the run fails and names it."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.stateless import BatchFunction
from tests.unit.operators.harness import Host

SCHEMA = pa.schema([("x", pa.int64())])


def test_each_batch_is_mapped() -> None:
    host = Host(lambda: BatchFunction(doubled, SCHEMA), [SCHEMA])

    host.send([{"x": 1}, {"x": 2}])

    assert host.rows == [{"x": 2}, {"x": 4}]


def test_a_schema_other_than_declared_is_refused_naming_both() -> None:
    declared = pa.schema([("x", pa.float64())])
    host = Host(lambda: BatchFunction(doubled, declared), [SCHEMA])

    with pytest.raises(
        Rejected, match=r"'under-test' returned columns \(x int64\) .* \(x double\)"
    ):
        host.send([{"x": 1}])


def test_an_empty_result_is_not_passed_on() -> None:
    host = Host(lambda: BatchFunction(lambda batch: batch.slice(0, 0), SCHEMA), [SCHEMA])

    host.send([{"x": 1}])

    assert host.emitted == []


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.multiply(batch.column("x"), 2)], schema=SCHEMA)
