"""One batch of a batch list as an entry of a database.

The key is the namespace and a number that grows with each append, so that key order is order of
arrival. The value is an Arrow stream of the rows and their key groups.
"""

import struct

import pyarrow as pa

from pipelines.state.backend import KEY_GROUP_COLUMN
from pipelines.state.hashing import KeyGroups

_KEY = struct.Struct(">QQ")
_SIGN = 1 << 63  # makes negative namespaces sort below positive ones

Entry = tuple[int, int]
"""Namespace and number of one stored batch."""


def encoded_entry(entry: Entry) -> bytes:
    namespace, number = entry
    return _KEY.pack(namespace + _SIGN, number)


def decoded_entry(key: bytes) -> Entry:
    namespace, number = _KEY.unpack(key)
    return int(namespace) - _SIGN, int(number)


def decoded_namespace(key: bytes) -> int:
    return decoded_entry(key)[0]


def encoded_batch(batch: pa.RecordBatch, groups: KeyGroups) -> bytes:
    complete = batch.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.uint16()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, complete.schema) as stream:
        stream.write_batch(complete)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decoded_batch(content: bytes) -> tuple[pa.RecordBatch, pa.Array]:
    """The rows and their key groups."""
    with pa.ipc.open_stream(content) as stream:
        complete = stream.read_next_batch()
    return complete.drop_columns([KEY_GROUP_COLUMN]), complete.column(KEY_GROUP_COLUMN)
