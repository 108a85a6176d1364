"""Decides which Spark type stands for an Arrow type that Spark lacks: never at a loss of value.

Knows batches only. Source: Spark's `from_arrow_type`, which refuses unsigned integers and assumes
microseconds.
"""

import pyarrow as pa

_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def readable_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, _readable(f.type), f.nullable) for f in schema])


def as_spark_reads(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in types that Spark has."""
    schema = readable_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    arrays = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _readable(column_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(column_type):
        return pa.timestamp("us", column_type.tz)
    if types.is_duration(column_type):
        return pa.duration("us")
    if types.is_time(column_type):
        return pa.time64("us")
    if types.is_dictionary(column_type):
        return _readable(column_type.value_type)
    if types.is_list(column_type) or types.is_large_list(column_type):
        return pa.list_(_readable(column_type.value_type))
    if types.is_map(column_type):
        return pa.map_(_readable(column_type.key_type), _readable(column_type.item_type))
    if types.is_struct(column_type):
        return pa.struct([pa.field(f.name, _readable(f.type), f.nullable) for f in column_type])
    return _SIGNED.get(column_type, column_type)
