"""One batch list of the RocksDB backend: older rows on disk by namespace, newer ones in memory.

Every batch is one entry of the database; the entries of each namespace are listed in memory. The
key is the namespace and a number that grows with each append, so that the key order is the order of
arrival. The value is an Arrow stream of the rows and their key groups. A list that stays in memory
also keeps all of its rows there.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    BatchListDescriptor,
    FrozenState,
    Increment,
    IncrementLog,
)
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory.batch_list import HashMapBatchList, snapshot_schema, with_namespace
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.on_disk.sorted_files import (
    CutDatabase,
    CutReader,
    DatabaseIncrement,
    Flush,
    Flushes,
    LinkedFiles,
    Reusable,
    SlotMemory,
    SortedFiles,
    SortedRows,
    WholeDatabase,
)

_KEY = struct.Struct(">QQ")
_SIGN = 1 << 63  # makes negative namespaces sort below positive ones

Entry = tuple[int, int]
"""The namespace and number of one stored batch."""


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
    """Returns the rows and their key groups."""
    with pa.ipc.open_stream(content) as stream:
        complete = stream.read_next_batch()
    return complete.drop_columns([KEY_GROUP_COLUMN]), complete.column(KEY_GROUP_COLUMN)


Content = tuple[pa.RecordBatch, KeyGroups] | None
"""None means that the entry is removed."""


@dataclass(slots=True)
class _Stored:
    entries: list[Entry]
    rows: int
    bytes: int  # of the rows in memory; on disk they are compressed


class RocksDbBatchList:
    """Implements `BatchList`. Used by the subtask's thread only; another thread reads cuts."""

    def __init__(
        self,
        descriptor: BatchListDescriptor,
        max_parallelism: int,
        hash_keys: HashKeys,
        files: SortedFiles,
        memory: SlotMemory,
        scratch: Callable[[], Path],
    ) -> None:
        self._descriptor = descriptor
        self._newer = HashMapBatchList(descriptor, max_parallelism, hash_keys)
        self._all = (
            HashMapBatchList(descriptor, max_parallelism, hash_keys)
            if descriptor.stays_in_memory
            else None
        )
        self._files = files
        self._memory = memory
        self._scratch = scratch
        self.log: IncrementLog[Reusable] = IncrementLog()
        self._flushes = Flushes(files)
        self._last_flush: Flush | None = None
        self._stored: dict[int, _Stored] = {}
        self._removed: list[Entry] = []
        self._next_number = 0
        memory.join()

    def __len__(self) -> int:
        return len(self._newer) + sum(stored.rows for stored in self._stored.values())

    @property
    def descriptor(self) -> BatchListDescriptor:
        return self._descriptor

    @property
    def state_bytes(self) -> int:
        return self._newer.state_bytes + sum(stored.bytes for stored in self._stored.values())

    def append(self, namespace: int, batch: pa.RecordBatch) -> None:
        self._newer.append(namespace, batch)
        if self._all is not None:
            self._all.append(namespace, batch)

    def namespaces_at_most(self, bound: int) -> list[int]:
        stored = {namespace for namespace in self._stored if namespace <= bound}
        return sorted(stored.union(self._newer.namespaces_at_most(bound)))

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        stored = self._stored.pop(namespace, None)
        newer = self._newer.pop(namespace)
        if self._all is not None:
            self._removed += [] if stored is None else stored.entries
            return self._all.pop(namespace)
        older = [] if stored is None else self._read(stored.entries)
        return [*older, *newer]

    def batches(self, namespace: int) -> Sequence[pa.RecordBatch]:
        check(self._all is not None, "the list stays in memory", state=self._descriptor.name)
        return () if self._all is None else self._all.batches(namespace)

    def key_groups_of(self, rows: pa.RecordBatch) -> KeyGroups:
        return self._newer.key_groups_of(rows)

    def settle(self) -> None:
        """Called between two calls of the operator; may move rows to disk."""
        if self._newer.state_bytes > self._memory.bytes_per_state:
            self._flushes.run_until(self._cut(None))

    def close(self) -> None:
        self._files.close()

    def freeze(self) -> FrozenState:
        rows = len(self)
        reader = _Scan()
        flush = self._cut(reader)
        schema = snapshot_schema(self._descriptor)
        batches = reader.batches(self._flushes, flush)
        release = partial(self._flushes.run_until, flush)
        name = self._descriptor.name
        return FrozenState(name, "batches", schema, rows, batches, release=release)

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState:
        if not len(self):
            self.log.on_written(checkpoint_id, None)
        cut = self._cut_database()
        increment = DatabaseIncrement(
            cut,
            self.log.base(confirmed_id) or {},
            lambda files: self.log.on_written(checkpoint_id, files),
        )
        return self._frozen(increment, cut)

    def freeze_native(self) -> FrozenState:
        cut = self._cut_database()
        return self._frozen(WholeDatabase(cut), cut)

    def adopt(self, files: SortedFiles, rows: int, reusable: Reusable) -> None:
        """Continues with a snapshot's database, which has `rows` rows, all of own key groups."""
        check(len(self) == 0, "only an empty list takes a database over", rows=len(self))
        self._files.close()
        self._files, self._flushes = files, Flushes(files)
        self.log = IncrementLog(reusable)
        for key, content in files.scan():
            entry, (batch, _) = decoded_entry(key), decoded_batch(content)
            self._note(entry, batch)
            if self._all is not None:
                self._all.append(entry[0], batch)
            self._next_number = max(self._next_number, entry[1])
        check(len(self) == rows, "a list has the rows that its snapshot names", rows=rows)

    def _cut_database(self) -> CutDatabase:
        links, schema = LinkedFiles(self._scratch()), snapshot_schema(self._descriptor)
        flush = self._cut(links if len(self) else None)  # no checkpoint stores an empty state
        return CutDatabase(self._flushes, flush, links, schema, 0)

    def _frozen(self, increment: Increment, cut: CutDatabase) -> FrozenState:
        name, schema = self._descriptor.name, snapshot_schema(self._descriptor)
        release = partial(cut.flushes.run_until, cut.flush)
        return FrozenState(
            name, "batches", schema, len(self), iter(()), increment=increment, release=release
        )

    def _note(self, entry: Entry, batch: pa.RecordBatch) -> None:
        stored = self._stored.setdefault(entry[0], _Stored([], 0, 0))
        stored.entries.append(entry)
        stored.rows += batch.num_rows
        stored.bytes += batch.nbytes

    def _read(self, entries: list[Entry]) -> list[pa.RecordBatch]:
        if self._last_flush is not None:
            self._flushes.run_until(self._last_flush)
        self._removed += entries
        found = self._files.get([encoded_entry(entry) for entry in entries])
        check(None not in found, "a stored batch is found", state=self._descriptor.name)
        return [decoded_batch(content)[0] for content in found if content is not None]

    def _cut(self, reader: CutReader | None) -> Flush:
        """Records what was appended or removed since the last cut; a later flush writes it."""
        entries: dict[Entry, Content] = dict.fromkeys(self._removed)
        self._removed = []
        for namespace in self._newer.namespaces():
            for batch in self._newer.pop(namespace):
                self._next_number += 1
                groups = self.key_groups_of(batch)
                entries[namespace, self._next_number] = (batch, groups)
                self._note((namespace, self._next_number), batch)
        flush = Flush(lambda: lambda: _sorted(entries), reader)
        self._flushes.add(flush)
        self._last_flush = flush
        return flush


class _Scan:
    """Reads the whole list as it was at one cut."""

    def __init__(self) -> None:
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def on_flushed(self, files: SortedFiles) -> None:
        self._rows = files.scan()

    def batches(self, flushes: Flushes, flush: Flush) -> Iterator[pa.RecordBatch]:
        flushes.run_until(flush)
        for key, content in self._rows:
            batch, groups = decoded_batch(content)
            yield with_namespace(batch, decoded_namespace(key), groups.to_numpy())


def _sorted(entries: dict[Entry, Content]) -> SortedRows:
    for entry in sorted(entries):
        content = entries[entry]
        yield encoded_entry(entry), None if content is None else encoded_batch(*content)
