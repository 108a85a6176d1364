"""Types that Spark does not have: the types that replace them keep every value."""

from datetime import UTC, datetime, time, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pipelines.spark.data_frames import as_spark_reads, readable_schema

EXTREMES = [
    (pa.uint8(), 2**8 - 1),
    (pa.uint16(), 2**16 - 1),
    (pa.uint32(), 2**32 - 1),
    (pa.uint64(), 2**64 - 1),
    (pa.float16(), 0.5),
    (pa.int64(), -(2**63)),
    (pa.large_string(), "Zürich"),
    (pa.large_binary(), b"\x00"),
    (pa.timestamp("s"), datetime(2013, 1, 1)),
    (pa.timestamp("ms", "UTC"), datetime(2013, 1, 1, tzinfo=UTC)),
    (pa.duration("s"), timedelta(seconds=90)),
    (pa.time32("s"), time(12, 30)),
    (pa.dictionary(pa.int8(), pa.string()), "JFK"),
    (pa.list_(pa.uint16()), [1, 2**16 - 1]),
    (pa.map_(pa.string(), pa.uint8()), [("a", 255)]),
    (pa.struct([("n", pa.uint32())]), {"n": 2**32 - 1}),
]


@pytest.mark.parametrize(("column_type", "value"), EXTREMES, ids=lambda each: str(each))
def test_conversion_to_a_spark_type_keeps_every_value(
    column_type: pa.DataType, value: object
) -> None:
    batch = pa.record_batch({"column": pa.array([value, None], column_type)})

    read = as_spark_reads(batch)

    assert read.column("column").to_pylist() == [value, None]
    assert read.schema == readable_schema(batch.schema)
    assert from_arrow_schema(read.schema).names == ["column"]
