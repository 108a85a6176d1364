"""The formats of a snapshot's state files: Arrow IPC in checkpoints, Parquet in savepoints.

Turns batches into bytes piece by piece, so that no whole file is ever in memory, and bytes into
batches. Does not know where the bytes are.

The length and digest of each file are computed as it is written and compared as it is read; a
sentence says what is wrong with a file. A digest proves that a file is the one its manifest names,
but not where both came from. So a state file that would unpack into far more than it holds is
refused without unpacking it: the sizes after decompression are in its own headers.
Source: the layouts of Apache Arrow's `Message.fbs` and of Parquet's footer.
"""

import base64
import os
import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.disk.files import BLAKE3, RunningDigest
from pipelines.domain.errors import CorruptSnapshot, Retryable, check
from pipelines.domain.snapshots import (
    FileHandle,
    check_expansion,
)

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
    """Yields the unpacked sizes of a record batch's buffers.

    A compressed buffer begins with its unpacked size, or with -1.
    """
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
    """Returns the position of a field of a flatbuffer's table, or 0 if it is absent."""
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


ARROW = ".arrow"
PARQUET = ".parquet"
SEPARATOR = "~"
"""Separates the parts of a name: no uid or state may contain it, so no two share a file. Files of
older points have "-" instead; the manifests give their names."""
SCHEMA_OF_DATABASE = ("~schema.arrow", "-schema.arrow")
"""The endings of a database's schema file (`state.on_disk`): it has no rows."""

Piece = memoryview


def file_stem(*parts: object) -> str:
    """Returns a distinct name for each sequence of parts: the join can be undone."""
    texts = [str(part) for part in parts]
    check(all(SEPARATOR not in text for text in texts), "no part holds the separator", parts=texts)
    return SEPARATOR.join(texts)


def file_name(stem: str, *, open_format: bool) -> str:
    return stem + (PARQUET if open_format else ARROW)


def encode_into(
    file: pa.NativeFile,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    open_format: bool,
    compresses: bool = False,
) -> None:
    """Writes one file, a batch at a time.

    Parquet is always compressed. Arrow is compressed with LZ4 if asked; readers detect that
    themselves.
    """
    with _writer(file, schema, open_format=open_format, compresses=compresses) as writer:
        for batch in batches:
            writer.write_batch(batch)


def encoded(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    open_format: bool,
    compresses: bool = False,
) -> Iterator[Piece]:
    """Yields what `encode_into` writes, in order, with at most one batch in memory at a time."""
    sink = _Drain()
    file = pa.PythonFile(sink, mode="w")
    with _writer(file, schema, open_format=open_format, compresses=compresses) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield from sink.drained()
    yield from sink.drained()


def _writer(
    file: pa.NativeFile, schema: pa.Schema, *, open_format: bool, compresses: bool
) -> pq.ParquetWriter | pa.ipc.RecordBatchFileWriter:
    if open_format:
        return pq.ParquetWriter(file, schema)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compresses else None)
    return pa.ipc.new_file(file, schema, options=options)


def has_layout(name: str) -> bool:
    """True if a file of that name holds rows in a format of this module."""
    return name.endswith((ARROW, PARQUET)) and not name.endswith(SCHEMA_OF_DATABASE)


def mapped(path: str) -> pa.Buffer:
    """Returns a local file's content, loaded as it is used; it stays valid without the file."""
    if not os.path.getsize(path):
        return pa.py_buffer(b"")  # an empty file cannot be mapped
    return pa.memory_map(path).read_buffer()


def problem_of_layout(name: str, content: pa.Buffer) -> str | None:
    """Returns why a whole file of rows is not acceptable, as a sentence. Reads headers only.

    The digest proves that a file is the one its manifest names, but not where both came from.
    """
    try:
        if name.endswith(PARQUET):
            _open_parquet(name, content)
        else:
            _open_arrow(name, content)
    except CorruptSnapshot as error:
        return str(error)
    return None


def decoded(name: str, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yields batches, which refer to `content` if possible. The bytes have been verified.

    Raises CorruptSnapshot if they would unpack into far more than they hold, or hold no rows, and
    Retryable if the system fails.
    """
    if name.endswith(PARQUET):
        batches = _parquet_batches(name, content)
    else:
        batches = _arrow_batches(_open_arrow(name, content))
    try:
        yield from batches
    except (pa.ArrowException, OSError, ValueError) as error:  # the last, of base64 and of a cast
        raise _not_rows(name, error) from error


def _open_arrow(name: str, content: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    try:
        reader = pa.ipc.open_file(content)
        check_arrow(name, content)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise _not_rows(name, error) from error
    return reader


def _arrow_batches(reader: pa.ipc.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _not_rows(name: str, error: Exception) -> CorruptSnapshot | Retryable:
    """Returns Retryable for an error that says nothing about the file, else CorruptSnapshot.

    An error of Arrow about bytes has no errno; an error of the system about a disk has one. An
    error for want of memory says nothing about the file, either.
    """
    is_of_the_system = isinstance(error, OSError) and error.errno is not None
    if is_of_the_system or isinstance(error, MemoryError):
        return Retryable(f"{name} cannot be read: {error}")
    said = str(error).splitlines()
    return CorruptSnapshot(f"{name} holds no rows that can be read: {said[0] if said else error}.")


class _Drain:
    """The file-like end of an Arrow writer: keeps written bytes until they are taken."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.closed = False

    def write(self, piece: bytes | pa.Buffer) -> int:
        view = memoryview(piece).cast("B")  # of an Arrow buffer, kept alive and not copied
        self._pieces.append(view)
        return len(view)

    def flush(self) -> None:
        """Does nothing, because nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def drained(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _open_parquet(name: str, content: pa.Buffer) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_rows(name, error) from error
    check_parquet(name, file.metadata)
    return file


def _parquet_batches(name: str, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yields rows in the types they were written in; Parquet itself has no seconds, for example."""
    file = _open_parquet(name, content)
    encoded_schema = (file.metadata.metadata or {}).get(b"ARROW:schema")
    if encoded_schema is None:
        raise CorruptSnapshot(f"{name} does not say what types its rows have.")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded_schema)))
    for group in range(file.num_row_groups):  # all at once, large values would fill the memory
        for batch in file.iter_batches(row_groups=[group], use_threads=False):
            yield batch.cast(schema)


def handle_of(name: str, pieces: Iterable[bytes | memoryview], like: str = BLAKE3) -> FileHandle:
    digest = RunningDigest(like)
    for piece in pieces:
        digest.update(piece)
    return handle_from(name, digest)


def handle_from(name: str, digest: RunningDigest) -> FileHandle:
    """The handle of a file, once all of its bytes have passed."""
    return FileHandle(name=name, length=digest.length, digest=digest.hexdigest())


def problem_of_length(where: str, length: int, file: FileHandle) -> str | None:
    if length == file.length:
        return None
    change = "truncated" if length < file.length else "extended"
    return f"{where} has {length} bytes instead of {file.length}: it was {change}."


def problem_of_content(where: str, found: FileHandle, file: FileHandle) -> str | None:
    if found.digest == file.digest:
        return None
    return f"{where} was altered: its digest does not match."
