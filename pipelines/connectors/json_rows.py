"""Rows as JSON objects, one per line, for files and for Kafka records.

Times are ISO 8601 in UTC, decimals and dates are text, binary is base64. NaN and infinity, which
JSON lacks, are null. Every column is written, null or not.
"""

import msgspec
import pyarrow as pa

from pipelines.connectors.text_columns import iso_times

_encoder = msgspec.json.Encoder()


def json_lines_of(table: pa.Table) -> bytes:
    """Each line ends with a newline and contains none."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, iso_times(table.column(index)))
    return _encoder.encode_lines(table.to_pylist())


def has_json(type_: pa.DataType, *, nested: bool = False) -> bool:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return has_json(type_.value_type, nested=True)
    if pa.types.is_struct(type_):
        return all(has_json(field.type, nested=True) for field in type_)
    if pa.types.is_timestamp(type_):
        return not (nested and type_.unit == "ns")  # no such time in Python
    return any(is_one(type_) for is_one in _PLAIN)


def record_text(row: pa.RecordBatch) -> str:
    """One row as JSON. A column without a JSON form is written as Python prints it."""
    table = pa.Table.from_batches([row])
    for index, column in enumerate(table.schema):
        if not has_json(column.type):
            values = [
                None if value is None else repr(value) for value in row.column(index).to_pylist()
            ]
            table = table.set_column(index, column.name, pa.array(values, pa.string()))
    return json_lines_of(table).decode().rstrip("\n")


_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
)
