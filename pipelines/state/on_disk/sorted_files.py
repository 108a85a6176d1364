"""One RocksDB database of sorted files that are written whole, and its snapshots.

Rows reach it as sorted files, which RocksDB ingests as they are. From Python that is twenty times
as fast as its memtable, and needs no log: the checkpoint restores what a crash loses. A cut only
queues a flush; the first thread that needs its content writes it, and all flushes before it. A
flush that fails stays in the queue and is tried again. Each holds a copy of rows, so every cut is
released at the end, which writes its flush even if no checkpoint stores the state. The module
handles raw bytes only; nothing is ever pickled.

A snapshot makes hard links at the cut, and copies each new file. RocksDB's sorted files never
change, so a checkpoint refers again to the files of the newest completed checkpoint. The small
files that say which files belong together are copied every time. The schema of the rows is stored
with them, so that any reader can read the database. A native savepoint copies every file, so that
it depends on nothing else.

Owns the database's options, its share of the slot's memory, and its directory. RocksDB's block
cache gets half of the memory, and all databases of the slot share it. The other half is divided
among the states for the rows that they keep in memory. A killed process cannot remove its
directory, so the next process that makes a directory in the same place removes it. Each owner locks
its directory with flock(2); if another process can take the lock, the owner is dead.

Source: RocksDB's `IngestExternalFile` and `Checkpoint`, through the library rocksdict; Flink's
`RocksIncrementalSnapshotStrategy` and `RocksNativeFullSnapshotStrategy`.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from pipelines.domain.errors import check
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
from pipelines.state.backend import IncrementFiles, StoredIncrement

LEVEL_ZERO_FILES = 16
"""How many files successive increments leave before RocksDB merges them. Each file is small, but a
merge rewrites the whole state, and so uploads it."""

SMALL_FILE_BYTES = 1 << 20
SMALL_FILES = 64
"""How many small files may be at the last level. RocksDB merges only from level to level. It puts a
file whose keys come after all others into the last level at once, so a growing list would leave one
file, with its descriptor, for every checkpoint."""

LOOK_EVERY = 16  # ingestions
MERGED_BYTES_MAX = SMALL_FILES * SMALL_FILE_BYTES  # per merge, because an ingestion waits for it
MEMTABLE_BYTES = 1 << 16  # it stays empty
NEVER = 1 << 30  # more files than there can be
BLOOM_BITS = 10
METADATA_BLOCK_BYTES = 4096
"""Indexes and filters are divided into parts of this size; the cache holds the parts in use.
Undivided, they would outgrow the cache as the state grows, and each lookup would read megabytes.

Source: Flink's `state.backend.rocksdb.memory.partitioned-index-filters`."""

RESTART_INTERVAL = 16
_TABLE_PROPERTIES = "rocksdb.aggregated-table-properties"
_RAW_SIZES = re.compile(r"raw key size=(\d+);.* raw value size=(\d+);")


class SortedFiles:
    """A database. Thread-safe, like RocksDB's reads and ingestions; iterators see no later rows."""

    def __init__(self, path: Path, cache: Cache, *, is_read_only: bool = False) -> None:
        self._path = path
        self._options = _options(cache)
        access = AccessType.read_only() if is_read_only else AccessType.read_write()
        self._database = Rdict(str(path), self._options, access_type=access)
        self._written = 0
        self._is_closed = False

    @property
    def live_bytes(self) -> int:
        """Estimated size of the rows that are not overwritten or deleted; 0 once it is closed."""
        if self._is_closed:
            return 0
        return self._database.property_int_value("rocksdb.estimate-live-data-size") or 0

    @property
    def stored_bytes(self) -> int:
        return sum(file["size"] for file in self._database.live_files())

    @property
    def unpacked_bytes(self) -> int:
        """The least memory that all blocks take, according to the files themselves.

        A block stores one key in RESTART_INTERVAL whole. For the other keys it stores only the
        difference from the key before.
        """
        match = _RAW_SIZES.search(self._database.property_value(_TABLE_PROPERTIES) or "")
        check(match is not None, "RocksDB tells how much its tables hold")
        keys, values = map(int, match.groups()) if match else (0, 0)
        return keys // RESTART_INTERVAL + values

    def ingest(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Writes rows, all visible at once. Keys are ascending and distinct; None deletes."""
        self._written += 1
        path = self._path / f"incoming-{self._written}.sst"
        writer = SstFileWriter(self._options)
        writer.open(str(path))
        count = 0
        for key, value in rows:
            count += 1
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        if not count:
            path.unlink(missing_ok=True)
            return
        writer.finish()
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._database.ingest_external_file([str(path)], options)
        if self._written % LOOK_EVERY == 1:  # the first time too: there may be many from before
            self._merge_small_files()

    def _merge_small_files(self) -> None:
        """Merges the small files of the last level if there are too many."""
        files = self._database.live_files()
        last = max((file["level"] for file in files), default=0)
        files = [file for file in files if file["level"] == last > 0]
        small = [file for file in files if file["size"] < SMALL_FILE_BYTES]
        if len(small) < SMALL_FILES:
            return
        first_key = min(file["start_key"] for file in small)
        last_key = max(file["end_key"] for file in small)
        between = [f for f in files if f["start_key"] <= last_key and f["end_key"] >= first_key]
        if sum(file["size"] for file in between) > MERGED_BYTES_MAX:
            return
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self._database.compact_range(first_key, last_key, options)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast("list[bytes | None]", self._database.get(list(keys)))

    def scan(self, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterates over all rows from `first` on, as they are at the time of this call."""
        return cast("Iterator[tuple[bytes, bytes]]", self._database.items(from_key=first))

    def scan_keys(self, first: bytes = b"") -> Iterator[bytes]:
        """Like `scan`, without the values: many large ones would not fit into memory together."""
        return cast("Iterator[bytes]", self._database.keys(from_key=first))

    def link_to(self, directory: Path) -> None:
        """Copies the database with hard links; `directory` must not exist."""
        Checkpoint(self._database).create_checkpoint(str(directory))

    def close(self) -> None:
        self._is_closed = True
        self._database.close()
        shutil.rmtree(self._path, ignore_errors=True)


def _options(cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_restart_interval(RESTART_INTERVAL)
    table.set_bloom_filter(BLOOM_BITS, False)
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)  # so that the cache's size bounds them too
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_zero_file_num_compaction_trigger(LEVEL_ZERO_FILES)
    # Ingestions never wait for merges anyway. A snapshot would: it writes the memtable, although
    # that is empty, once a write need not wait. Until then the whole process would be blocked.
    options.set_level_zero_slowdown_writes_trigger(NEVER)
    options.set_level_zero_stop_writes_trigger(NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


PREFIX = "ftdash-state-"
LOCK = "owner.lock"
REMOVALS_MAX = 100
"""How often neighbours may remove a directory before its owner has locked it."""


class WorkingDirectory:
    """A process's own directory, with a random name; `close` or a later neighbour removes it."""

    def __init__(self, root: Path, label: str) -> None:
        """Raises OSError if `root` cannot be written."""
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        self.path, self._lock = _locked_directory(root, f"{PREFIX}{label}-")
        self._made = 0

    def fresh(self, label: str) -> Path:
        """An unused path inside the directory; it is not created."""
        self._made += 1
        return self.path / f"{label}-{self._made}"

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked_directory(root: Path, prefix: str) -> tuple[Path, int]:
    """Makes a directory and takes its lock. Raises OSError if that fails.

    A neighbour that looks between the two takes the lock first and removes the directory; then the
    owner begins again. Otherwise a database would make the directory again, but without the lock,
    and no neighbour would ever remove what a killed owner leaves.
    """
    for _ in range(REMOVALS_MAX):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until such a neighbour has removed everything
        if (path / LOCK).exists():
            return path, lock
        os.close(lock)
    raise OSError(errno.EBUSY, f"neighbours removed {REMOVALS_MAX} new directories", str(root))


def remove_abandoned(root: Path) -> None:
    """Removes the neighbouring directories whose owners are dead."""
    for path in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being made or removed right now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """Removes the lock last: after a crash halfway a later neighbour still recognizes the rest."""
    with contextlib.suppress(OSError):  # another neighbour may be removing it too
        for content in path.iterdir():
            if content.is_dir():
                shutil.rmtree(content, ignore_errors=True)
            elif content.name != LOCK:
                content.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


BLOCK_CACHE_SHARE = 0.5

ROOM_PER_BYTE = 6
"""The memory to allow per byte of a row. Columns and index have room to grow, and a flush holds the
changed rows as Arrow, then encoded, and a second time while it sorts them. Measured: 5.5."""


class SlotMemory:
    def __init__(self, total_bytes: int) -> None:
        cache_bytes = int(total_bytes * BLOCK_CACHE_SHARE)
        self.cache = Cache(cache_bytes)
        self._rows_bytes = total_bytes - cache_bytes
        self._states = 0

    def join(self) -> None:
        """Notes that one more state shares the memory from now on."""
        self._states += 1

    @property
    def bytes_per_state(self) -> int:
        return self._rows_bytes // max(1, self._states)

    def share_of(self, row_bytes: int) -> float:
        """Returns the share of a state's rows that fits into memory; at 1 or more, all rows fit."""
        return self.bytes_per_state / max(1, row_bytes * ROOM_PER_BYTE)


SortedRows = Iterator[tuple[bytes, bytes | None]]
"""The keys are ascending and distinct; a None deletes its key."""


class CutReader(Protocol):
    """A reader that needs the database exactly as it is after one flush."""

    def on_flushed(self, files: SortedFiles) -> None: ...


class Flush:
    """One write. The writing thread calls `content` once; its result can be read repeatedly."""

    def __init__(
        self, content: Callable[[], Callable[[], SortedRows]], reader: CutReader | None
    ) -> None:
        self._content: Callable[[], Callable[[], SortedRows]] | None = content
        self._rows: Callable[[], SortedRows] | None = None
        # Weak, because a cut that has no reader any more must not pin files of the database.
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
                check(bool(self._waiting), "a flush waits until it is written")
                self._waiting[0].run(self._files)
                self._waiting.popleft()


SORTED_FILE = ".sst"
MANIFEST_PREFIX = "MANIFEST-"
CURRENT = "CURRENT"
SCHEMA_FILE = "schema.arrow"
KEY_COUNT = b"keys"
"""The metadata field of the schema that says how many of its first columns are the key."""

Reusable = Mapping[str, FileHandle]
"""The files that a checkpoint can refer to again, by their name in the database's directory."""


class LinkedFiles:
    """Makes the hard links as soon as the cut is written; they are deleted with this object."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def on_flushed(self, files: SortedFiles) -> None:
        files.link_to(self._directory)

    def paths(self) -> list[Path]:
        """Returns the sorted files, the manifest and the file that names it. Logs are empty."""
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
    manifests = [name for name in stored if name.startswith(MANIFEST_PREFIX)]
    check(len(manifests) == 1, "a database has one manifest", found=manifests)
    manifest = manifests[0]
    parts = tuple(StatePart(name=n, file=f) for n, f in stored.items() if n != manifest)
    return StoredIncrement(StateFormat.ROCKSDB, stored[manifest], parts)
