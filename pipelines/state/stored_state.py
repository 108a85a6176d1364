"""The rows of one stored state, in any format of its files.

For a restore at another parallelism or into another backend, and for tools that only read.
"""

import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle
from pipelines.state.incremental_batch_list import merged_batches
from pipelines.state.incremental_table import merged_rows
from pipelines.state.increments import FetchFile, StoredDatabase
from pipelines.state.stored_database import stored_rows

Read = Callable[[FileHandle], Iterable[pa.RecordBatch]]


def rows_of(
    handle: StateHandle, read: Read, fetch: FetchFile, groups: KeyGroupRange
) -> Generator[pa.RecordBatch, None, None]:
    """At least the rows of `groups`, with the columns that `handle.schema` names.

    Only a database needs the local disk, until the iteration ends. Raises CorruptSnapshot and
    Retryable as `read` and `fetch` do.
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
            with tempfile.TemporaryDirectory(prefix="ftdash-restore-") as scratch:
                yield from stored_rows(database, groups, Path(scratch) / "db")
