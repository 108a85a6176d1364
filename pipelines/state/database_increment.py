"""A snapshot of a RocksDB database: hard links at the cut, and a copy of each new file.

RocksDB's sorted files never change, so a checkpoint refers again to the files that the newest
completed checkpoint holds. The small files that say which files belong together are copied every
time. The schema of the rows is stored with them, so that any reader can read the database. A native
savepoint copies every file, so that it depends on nothing else.

Source: Flink's `RocksIncrementalSnapshotStrategy` and, for savepoints, its
`RocksNativeFullSnapshotStrategy`.
"""

import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
from pipelines.state.flushes import Flush, Flushes
from pipelines.state.increments import IncrementFiles, StoredIncrement
from pipelines.state.sorted_files import SortedFiles

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
