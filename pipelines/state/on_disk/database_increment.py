"""A snapshot of a RocksDB database: hard links at the cut, and a copy of each new file.

RocksDB's sorted files never change, so a checkpoint refers again to the files that the newest
completed checkpoint holds. The small files that say which files belong together are copied every
time. The schema of the rows is stored with them, so that any reader can read the database. A native
savepoint copies every file, so that it depends on nothing else.

Source: Flink's `RocksIncrementalSnapshotStrategy` and, for savepoints, its
`RocksNativeFullSnapshotStrategy`.

Writes the changes up to each cut from memory into a database, in the order of the cuts.

A cut only notes what is to be written. The first thread that needs a cut's content writes it, and
everything before it. A flush that fails stays in the queue and is tried again.
"""

import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
from pipelines.state.increments import IncrementFiles, StoredIncrement
from pipelines.state.on_disk.sorted_files import SortedFiles

SortedRows = Iterator[tuple[bytes, bytes | None]]
"""Keys ascending and distinct; None deletes."""


class CutReader(Protocol):
    """A reader that needs the database exactly as it is after one flush."""

    def on_flushed(self, files: SortedFiles) -> None: ...


class Flush:
    """`content` is called once, on the thread that writes; its result can be read repeatedly."""

    def __init__(
        self, content: Callable[[], Callable[[], SortedRows]], reader: CutReader | None
    ) -> None:
        self._content: Callable[[], Callable[[], SortedRows]] | None = content
        self._rows: Callable[[], SortedRows] | None = None
        # Weak: a cut that has no reader any more must not pin files of the database.
        self._reader = None if reader is None else weakref.ref(reader)
        self.is_done = False

    def run(self, files: SortedFiles) -> None:
        if self._content is not None:
            self._rows = self._content()
            self._content = None
        if self._rows is not None:
            files.ingest(self._rows())
            self._rows = None
        reader = None if self._reader is None else self._reader()
        if reader is not None:
            reader.on_flushed(files)
        self.is_done = True


class Flushes:
    """The flushes of one database."""

    def __init__(self, files: SortedFiles) -> None:
        self._files = files
        self._waiting: deque[Flush] = deque()
        self._writing = threading.Lock()

    def add(self, flush: Flush) -> None:
        self._waiting.append(flush)

    def run_until(self, flush: Flush) -> None:
        """On return, `flush` and all before it are written. Raises what the database raises."""
        with self._writing:
            while not flush.is_done:
                self._waiting[0].run(self._files)
                self._waiting.popleft()


SORTED_FILE = ".sst"
MANIFEST_PREFIX = "MANIFEST-"
CURRENT = "CURRENT"
SCHEMA_FILE = "schema.arrow"
KEY_COUNT = b"keys"
"""In the schema's metadata: how many of its first columns are the key."""

Reusable = Mapping[str, FileHandle]
"""The files to refer to again, by their name in the database's directory."""


class LinkedFiles:
    """Makes the hard links as soon as the cut is written; they are deleted with this object."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def on_flushed(self, files: SortedFiles) -> None:
        files.link_to(self._directory)

    def paths(self) -> list[Path]:
        """Sorted files, the manifest and the name of the newest manifest; logs are empty."""
        kept = (SORTED_FILE, CURRENT)
        return sorted(
            path
            for path in self._directory.iterdir()
            if path.name.endswith(kept) or path.name.startswith(MANIFEST_PREFIX)
        )

    def write_schema(self, schema: pa.Schema, key_count: int) -> Path:
        path = self._directory / SCHEMA_FILE
        described = schema.with_metadata({KEY_COUNT: str(key_count).encode()})
        path.write_bytes(described.serialize().to_pybytes())
        return path


@dataclass(frozen=True, slots=True)
class CutDatabase:
    """A database as it was at one cut, once `flush` is written."""

    flushes: Flushes
    flush: Flush
    links: LinkedFiles
    schema: pa.Schema
    key_count: int  # for a table; a batch list has its columns in its entries


@dataclass(frozen=True, slots=True)
class DatabaseIncrement:
    """Implements `Increment` for a checkpoint."""

    cut: CutDatabase
    reusable: Reusable
    on_written: Callable[[Reusable], None]

    def write(self, files: IncrementFiles) -> StoredIncrement:
        stored = dict(_copied(self.cut, files, self.reusable, shares=True))
        self.on_written({n: file for n, file in stored.items() if n.endswith(SORTED_FILE)})
        return _database_of(stored)


@dataclass(frozen=True, slots=True)
class WholeDatabase:
    """Implements `Increment` for a native savepoint: later checkpoints never refer to it."""

    cut: CutDatabase

    def write(self, files: IncrementFiles) -> StoredIncrement:
        return _database_of(dict(_copied(self.cut, files, {}, shares=False)))


def _copied(
    cut: CutDatabase, files: IncrementFiles, reusable: Reusable, *, shares: bool
) -> Iterator[tuple[str, FileHandle]]:
    cut.flushes.run_until(cut.flush)
    for path in [*cut.links.paths(), cut.links.write_schema(cut.schema, cut.key_count)]:
        known = reusable.get(path.name)
        if known is None:
            is_shared = shares and path.name.endswith(SORTED_FILE)
            yield path.name, files.copy(path.name, path, is_shared=is_shared)
            continue
        check(known.length == path.stat().st_size, "a sorted file never changes", file=known)
        yield path.name, known


def _database_of(stored: Mapping[str, FileHandle]) -> StoredIncrement:
    [manifest] = [name for name in stored if name.startswith(MANIFEST_PREFIX)]
    parts = tuple(StatePart(name=n, file=f) for n, f in stored.items() if n != manifest)
    return StoredIncrement(StateFormat.ROCKSDB, stored[manifest], parts)
