"""Fetches the database of a snapshot to the local disk, and encodes and decodes its rows.

A restore takes the database over, or reads its rows for another parallelism or backend; tools only
read it. `rows_of` reads the rows of a stored state from files of any format. Reading needs no state
backend, because the schema is stored with the files.

A row of a table is a byte string: a fixed part, then its texts one after the other. The fixed part
contains an optional key group (big-endian, so that rows sort by it), one validity bit per column,
the fixed-width values and the lengths of the texts. Equal rows have equal bytes, and different rows
have different bytes, so the encoding of a key can replace the key; the value of a null is written
as zero. This format is stored in snapshots, so it can never change.
"""

import struct
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import Cache

from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle, check_expansion
from pipelines.state.arrow_types import storage_dtype, to_arrow
from pipelines.state.backend import KEY_GROUP_COLUMN, NAMESPACE_COLUMN, FetchFile, StoredDatabase
from pipelines.state.hashing import is_bytes_like
from pipelines.state.in_memory.batch_list import merged_batches
from pipelines.state.in_memory.hashmap import merged_rows
from pipelines.state.on_disk.rocksdb_batch_list import decoded_batch, decoded_namespace
from pipelines.state.on_disk.sorted_files import (
    CURRENT,
    KEY_COUNT,
    MANIFEST_PREFIX,
    SCHEMA_FILE,
    SORTED_FILE,
    Reusable,
    SortedFiles,
    WorkingDirectory,
)

Records = npt.NDArray[np.void]
Packed = Any
"""Encoded rows: numpy `Records` of bytes if fixed-width, else Arrow binaries, which are untyped
anyway."""

KeyGroups = npt.NDArray[np.uint16]
Structured = npt.NDArray[Any]

_VALID = "valid"
_GROUP = "group"


class RowCodec:
    """The encoding of one schema; `with_group` puts the key group in front of every row."""

    def __init__(self, schema: pa.Schema, *, with_group: bool) -> None:
        self.schema = schema
        self._texts = [i for i, field in enumerate(schema) if is_bytes_like(field.type)]
        self._valid_bytes = max(1, -(-len(schema) // 8))
        fields: list[tuple[Any, ...]] = [(_GROUP, ">u2")] if with_group else []
        fields.append((_VALID, "u1", (self._valid_bytes,)))
        for index, field in enumerate(schema):
            width = "<u4" if index in self._texts else storage_dtype(field.type).newbyteorder("<")
            fields.append((str(index), width))
        self._fixed = np.dtype(fields)

    def encode(
        self, columns: Sequence[pa.Array], count: int, groups: KeyGroups | None = None
    ) -> Packed:
        """Encodes `count` rows; `columns` have the types of the schema, in its order."""
        rows: Structured = np.zeros(count, self._fixed)
        if groups is not None:
            rows[_GROUP] = groups
        bits = np.zeros((count, len(self.schema)), np.bool_)
        for index, column in enumerate(columns):
            bits[:, index] = column.is_valid().to_numpy(zero_copy_only=False)
            rows[str(index)] = _lengths(column) if index in self._texts else _numbers(column)
        if columns:
            rows[_VALID] = np.packbits(bits, axis=1, bitorder="little")
        records: Records = rows.view(f"V{self._fixed.itemsize}")
        if not self._texts:
            return records
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(self._fixed.itemsize), count, [None, pa.py_buffer(records)]
        )
        parts = [_bytes_of(columns[index]) for index in self._texts]
        nothing = pa.scalar(b"", pa.large_binary())  # joins two parts
        return pc.binary_join_element_wise(fixed.cast(pa.large_binary()), *parts, nothing)

    def decode(self, rows: list[bytes]) -> tuple[pa.RecordBatch, KeyGroups | None]:
        """Returns the rows, and their key groups if the encoding contains them."""
        content = np.frombuffer(b"".join(rows), np.uint8)
        if self._texts:
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            starts = np.cumsum(lengths) - lengths
            places = starts[:, None] + np.arange(self._fixed.itemsize)
            fixed = np.ascontiguousarray(content[places]).view(self._fixed).ravel()
        else:
            starts = np.empty(0, np.int64)
            fixed = content.view(self._fixed)
        columns = self._columns(fixed, content, starts + self._fixed.itemsize)
        groups = None
        if _GROUP in (self._fixed.names or ()):
            groups = fixed[_GROUP].astype(np.uint16)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), groups

    def _columns(
        self, fixed: Structured, content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> list[pa.Array]:
        bits = np.unpackbits(fixed[_VALID], axis=1, bitorder="little").astype(np.bool_)
        columns = []
        for index, field in enumerate(self.schema):
            valid = bits[:, index]
            stored = fixed[str(index)]
            if index in self._texts:
                lengths = stored.astype(np.int64)
                columns.append(_texts(content, starts, lengths, valid, field.type))
                starts = starts + lengths
            else:
                native = stored.astype(stored.dtype.newbyteorder("="))
                columns.append(to_arrow(native, field.type, None if valid.all() else valid))
        return columns


def sort_order(packed: Packed) -> npt.NDArray[np.int64]:
    """Returns the positions in the order of the bytes, which is RocksDB's order."""
    if not isinstance(packed, np.ndarray):
        return np.asarray(pc.sort_indices(packed)).astype(np.int64)
    width = packed.dtype.itemsize
    words = -(-width // 8)
    padded = np.zeros((len(packed), words * 8), np.uint8)
    padded[:, :width] = np.ascontiguousarray(packed).view(np.uint8).reshape(len(packed), width)
    numbers = padded.view(">u8").astype(np.uint64)
    return np.lexsort([numbers[:, word] for word in reversed(range(words))])


def take(packed: Packed, positions: npt.NDArray[np.int64]) -> Packed:
    if isinstance(packed, np.ndarray):
        return packed.take(positions)
    return packed.take(pa.array(positions))


def bytes_list(packed: Packed) -> list[bytes]:
    listed: list[bytes] = packed.tolist() if isinstance(packed, np.ndarray) else packed.to_pylist()
    return listed


def _numbers(column: pa.Array) -> npt.NDArray[np.generic]:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _bytes_of(column: pa.Array) -> pa.Array:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    wide = column.cast(pa.large_string()).view(pa.large_binary()) if is_text else column
    return wide.cast(pa.large_binary()).fill_null(b"")


def _lengths(column: pa.Array) -> npt.NDArray[np.generic]:
    return np.asarray(pc.binary_length(_bytes_of(column)).to_numpy(zero_copy_only=False))


def _texts(
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_],
    column_type: pa.DataType,
) -> pa.Array:
    """Gathers values that are scattered in `content` into one array."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] >= LONG_BYTES * len(lengths):
        ends = (starts + lengths).tolist()
        whole = content.data
        text = b"".join([whole[a:b] for a, b in zip(starts.tolist(), ends, strict=True)])
    else:
        text = content[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    mask = None
    if not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type)
    wide = pa.large_string() if is_text else pa.large_binary()
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(wide, len(lengths), buffers).cast(column_type)


DISK_FAILED, FILE_MISSING = "IO error", "No such file or directory"
"""How RocksDB's disk errors begin, and its words for a missing file that its manifest names."""

READ_CACHE_BYTES = 8 << 20
READ_ROWS = 1 << 14  # each a tuple of bytes: some 150 bytes of Python objects
READ_BYTES = 8 << 20
"""Limits the size of a chunk of large rows. A whole chunk is in memory at once, and while it is
decoded, other threads, such as the heartbeat thread, wait for the interpreter's lock."""

FEW_ROWS = 16
LONG_BYTES = 256
"""From this mean length on, it is faster to copy texts one by one than to index their bytes."""

_GROUP_PREFIX = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns of a table's database; a batch list has its columns in its entries."""

    key: pa.Schema
    value: pa.Schema

    @property
    def snapshot(self) -> pa.Schema:
        return pa.schema([*self.key, *self.value, (KEY_GROUP_COLUMN, pa.uint16())])


def fetch_database(database: StoredDatabase, directory: Path) -> None:
    """Copies all files into `directory` and verifies them. Raises CorruptSnapshot or Retryable."""
    with _on_local_disk(directory):
        directory.mkdir(parents=True)
    for part in database.handle.parts:
        if "/" in part.name or part.name in ("", ".", ".."):
            raise CorruptSnapshot(f"{part.name!r} is no file of a database; it is not written.")
        # RocksDB deletes sorted files and never writes into one.
        may_share = part.name.endswith(SORTED_FILE)
        database.fetch(part.file, directory / part.name, may_share=may_share)
    try:
        with _on_local_disk(directory):
            manifest = (directory / CURRENT).read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise CorruptSnapshot(f"{database.handle.file.name} belongs to no database.") from error
    if not manifest.startswith(MANIFEST_PREFIX) or "/" in manifest:
        raise CorruptSnapshot(f"{manifest!r} is no manifest of a database; it is not written.")
    database.fetch(database.handle.file, directory / manifest)


def opened(
    database: StoredDatabase, directory: Path, cache: Cache, *, is_read_only: bool = False
) -> SortedFiles:
    """Opens the database that `fetch_database` has put into `directory`.

    Raises CorruptSnapshot if it cannot be opened, or if its files would unpack into far more bytes
    than they have, which no file of ours can do. Raises Retryable if the local disk fails.
    """
    try:
        files = SortedFiles(directory, cache, is_read_only=is_read_only)
    except Exception as error:  # the library raises nothing more specific
        said = str(error)
        if said.startswith(DISK_FAILED) and FILE_MISSING not in said:
            raise Retryable(f"{directory} cannot be used: {_first_line(error)}.") from error
        raise CorruptSnapshot(
            f"The database of {database.handle.file.name} cannot be opened: {_first_line(error)}."
        ) from error
    try:
        name = f"The database of {database.handle.file.name}"
        check_expansion(name, files.stored_bytes, files.unpacked_bytes)
    except CorruptSnapshot:
        files.close()
        raise
    return files


def row_schema(directory: Path) -> RowSchema:
    """Raises CorruptSnapshot if the schema file of the database cannot be read."""
    try:
        with _on_local_disk(directory):
            content = (directory / SCHEMA_FILE).read_bytes()
        schema = pa.ipc.read_schema(pa.py_buffer(content))
        count = int((schema.metadata or {})[KEY_COUNT])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        problem = f"The schema of a stored database cannot be read: {_first_line(error)}."
        raise CorruptSnapshot(problem) from error
    fields = list(schema)[:-1]  # the last one is the key group
    return RowSchema(pa.schema(fields[:count]), pa.schema(fields[count:]))


def sorted_files_of(database: StoredDatabase) -> dict[str, FileHandle]:
    return {p.name: p.file for p in database.handle.parts if p.name.endswith(SORTED_FILE)}


def reusable_files(database: StoredDatabase) -> Reusable:
    """Returns the files that a later checkpoint may refer to: the run's own, not a savepoint's."""
    if not database.is_own:
        return {}
    return {name: file for name, file in sorted_files_of(database).items() if file.is_shared}


def stored_rows(
    database: StoredDatabase, groups: KeyGroupRange, directory: Path
) -> Iterator[pa.RecordBatch]:
    """Yields at least the rows of `groups`, in their stored types; `directory` is scratch space."""
    fetch_database(database, directory)
    files = opened(database, directory, Cache(READ_CACHE_BYTES), is_read_only=True)
    try:
        if database.handle.kind == "table":
            yield from _table_rows(files, row_schema(directory), groups)
        else:
            yield from _list_rows(files, row_schema(directory).snapshot)
    finally:
        files.close()


def decoded_rows(
    rows: Iterator[tuple[bytes, bytes]], key_codec: RowCodec, value_codec: RowCodec
) -> Iterator[pa.RecordBatch]:
    """Turns the rows of a table's database into rows of a snapshot."""
    added = [(KEY_GROUP_COLUMN, pa.uint16())]
    schema = pa.schema([*key_codec.schema, *value_codec.schema, *added])
    for chunk in _chunks(rows):
        keys, groups = key_codec.decode([key for key, _ in chunk])
        values, _ = value_codec.decode([value for _, value in chunk])
        arrays = [*keys.columns, *values.columns, pa.array(groups, pa.uint16())]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chunks(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk, size = list[tuple[bytes, bytes]](), 0
    while few := list(islice(rows, FEW_ROWS)):
        chunk += few
        size += sum([len(value) for _, value in few])
        if size >= READ_BYTES or len(chunk) >= READ_ROWS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _table_rows(
    files: SortedFiles, schema: RowSchema, groups: KeyGroupRange
) -> Iterator[pa.RecordBatch]:
    behind = _GROUP_PREFIX.pack(groups.last + 1)
    rows = takewhile(lambda row: row[0] < behind, files.scan(_GROUP_PREFIX.pack(groups.first)))
    key_codec = RowCodec(schema.key, with_group=True)
    yield from decoded_rows(rows, key_codec, RowCodec(schema.value, with_group=False))


def _list_rows(files: SortedFiles, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields all rows; the restore keeps those of its own key groups."""
    for key, content in files.scan():
        batch, groups = decoded_batch(content)
        namespaces = pa.repeat(pa.scalar(decoded_namespace(key), pa.int64()), batch.num_rows)
        columns = {**dict(zip(batch.schema.names, batch.columns, strict=True))}
        columns |= {NAMESPACE_COLUMN: namespaces, KEY_GROUP_COLUMN: groups}
        yield pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names})


@contextmanager
def _on_local_disk(directory: Path) -> Iterator[None]:
    """Raises Retryable for disk errors, except a missing file, which is the snapshot's fault."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Retryable(f"{directory} cannot be used: {error}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


Read = Callable[[FileHandle], Iterable[pa.RecordBatch]]


def rows_of(
    handle: StateHandle, read: Read, fetch: FetchFile, groups: KeyGroupRange
) -> Generator[pa.RecordBatch, None, None]:
    """Yields at least the rows of `groups`, with the columns that `handle.schema` names.

    Only a database needs the local disk, until the iteration ends. The next reader or slot removes
    what a killed reader leaves there. Raises CorruptSnapshot and Retryable as `read` and `fetch`
    do.
    """
    match handle.format:
        case StateFormat.ROWS:
            yield from read(handle.file)
        case StateFormat.DELTAS if handle.kind == "table":
            yield from merged_rows(read(file) for file in reversed(handle.files))
        case StateFormat.DELTAS:
            yield from merged_batches(lambda: (read(file) for file in handle.files))
        case StateFormat.ROCKSDB:
            database = StoredDatabase(handle, fetch, is_own=False)
            with closing(WorkingDirectory(Path(tempfile.gettempdir()), "read")) as scratch:
                yield from stored_rows(database, groups, scratch.fresh("db"))
