"""Batches as rows of Redis hashes: keys, fields and values as text, packed for a script.

Works column by column, never row by row. Decides how a key is spelled: the values of the key
columns, joined by colons. Colons and percent signs within a value are escaped, so that no two keys
collide.
"""

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.redis.hash_scripts import CHUNK_ROWS_MAX
from pipelines.connectors.text_columns import text_of
from pipelines.domain.errors import Rejected

CHUNK_BYTES = 1024 * 1024
"""About how much is applied at once; meanwhile the server does nothing else."""

Chunk = bytes
"""MessagePack of [field names, row keys, columns of values]; null: the field is absent."""


def check_rows(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raises Rejected naming a column that a hash cannot hold, or a key that is no column."""
    if not keys:
        raise Rejected("Hashes in Redis need key columns to be written again without harm.")
    missing = next((key for key in keys if key not in schema.names), None)
    if missing is not None:
        raise Rejected(f"The key column {missing} of the Redis hashes is not in the results.")
    for column in schema:
        if not any(is_one(column.type) for is_one in _FIELDS):
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be a field of a Redis hash."
            )
    unfit = next((key for key in keys if not _may_be_key(schema.field(key).type)), None)
    if unfit is not None:
        raise Rejected(
            f"Key column {unfit} of type {schema.field(unfit).type} cannot name a Redis hash; use"
            " text, whole numbers, dates or times."
        )


def chunks_of(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> Iterator[Chunk]:
    """Raises Rejected when a key is null."""
    table = pa.Table.from_batches(batches).combine_chunks()
    if not table.num_rows:
        return
    names = table.schema.names
    texts = {name: text_of(table.column(name)) for name in table.schema.names}
    row_keys = _row_keys([(key, texts[key]) for key in keys])
    step = _rows_per_chunk(table)
    for start in range(0, table.num_rows, step):
        columns = [text.slice(start, step).to_pylist() for text in texts.values()]
        yield msgspec.msgpack.encode([names, row_keys.slice(start, step).to_pylist(), columns])


def _rows_per_chunk(table: pa.Table) -> int:
    fitting: int = table.num_rows * CHUNK_BYTES // max(table.nbytes, 1)
    return max(1, min(CHUNK_ROWS_MAX, fitting))


def _row_keys(columns: Sequence[tuple[str, pa.ChunkedArray]]) -> pa.ChunkedArray:
    escaped = []
    for name, text in columns:
        if text.null_count:
            raise Rejected(f"Key column {name} of the Redis hashes is null.")
        percent = pc.replace_substring(text, "%", "%25")
        escaped.append(pc.replace_substring(percent, ":", "%3A"))
    return pc.binary_join_element_wise(*escaped, pa.scalar(":", escaped[0].type))


def _may_be_key(type_: pa.DataType) -> bool:
    return any(is_one(type_) for is_one in _KEYS)


_KEYS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
_FIELDS = (  # no binary: the server's MessagePack knows text only
    *_KEYS,
    pa.types.is_null,
    pa.types.is_floating,
    pa.types.is_decimal,
)
