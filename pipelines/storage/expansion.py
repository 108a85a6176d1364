"""Refuses, without unpacking it, a state file that would unpack into far more than it holds.

A digest proves that a file is the one its manifest names, not where the two came from. Reads the
sizes after decompression from the file's own headers, and compares them with its length. Source:
the layouts of Apache Arrow's `Message.fbs` and of Parquet's footer.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.domain.snapshots import check_expansion

_ARROW_MAGIC_BYTES = 8
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3  # fields of the tables Message and RecordBatch


def check_parquet(name: str, metadata: pq.FileMetaData) -> None:
    """Raises CorruptSnapshot naming the file."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            check_expansion(name, column.total_compressed_size, column.total_uncompressed_size)


def check_arrow(name: str, content: pa.Buffer) -> None:
    """Raises CorruptSnapshot naming the file. Looks at headers only."""
    for message in _messages(content):
        if message.type == "record batch":
            body = message.body
            check_expansion(name, body.size, sum(_unpacked_sizes(message.metadata, body)))


def _messages(content: pa.Buffer) -> Iterator[pa.Message]:
    """A file is a magic word, followed by the messages of a stream."""
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(content.slice(_ARROW_MAGIC_BYTES)))
    try:
        while True:
            yield reader.read_next_message()
    except StopIteration:
        return


def _unpacked_sizes(metadata: pa.Buffer, body: pa.Buffer) -> Iterator[int]:
    """Unpacked sizes of a record batch's buffers; a compressed one begins with it, or with -1."""
    header = memoryview(metadata)
    batch = _table(header, _field(header, _number(header, 0), _HEADER))
    is_compressed = _field(header, batch, _COMPRESSION) != 0
    buffers = _table(header, _field(header, batch, _BUFFERS))
    for index in range(_number(header, buffers)):
        offset, length = struct.unpack_from("<qq", header, buffers + 4 + 16 * index)
        if not is_compressed or length < 8:
            yield length
            continue
        (unpacked,) = struct.unpack_from("<q", body, offset)
        yield length if unpacked == -1 else abs(unpacked)


def _field(header: memoryview, table: int, index: int) -> int:
    """The position of a field of a flatbuffer's table; 0: it is absent."""
    fields = table - struct.unpack_from("<i", header, table)[0]
    (size,) = struct.unpack_from("<H", header, fields)
    slot = 4 + 2 * index
    offset = struct.unpack_from("<H", header, fields + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _table(header: memoryview, reference: int) -> int:
    return reference + _number(header, reference)


def _number(header: memoryview, at: int) -> int:
    (value,) = struct.unpack_from("<I", header, at)
    return int(value)
