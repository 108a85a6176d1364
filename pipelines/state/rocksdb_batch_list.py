"""One batch list of the RocksDB backend: rows on disk by namespace, and in memory what is newer.

Every batch is one entry, an Arrow stream under its namespace and a number that grows with each
append, so that the order of the keys is the order of arrival. Which entries a namespace has is
known in memory.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.state.backend import BatchListDescriptor, FrozenState
from pipelines.state.batch_list import HashMapBatchList, snapshot_schema, with_namespace
from pipelines.state.flushes import CutReader, Flush, Flushes, SortedRows
from pipelines.state.hashing import KeyGroups
from pipelines.state.memory_share import SlotMemory
from pipelines.state.sorted_files import SortedFiles
from pipelines.state.table import HashKeys

_KEY = struct.Struct(">QQ")
_SIGN = 1 << 63  # makes negative namespaces sort below positive ones

Entry = tuple[int, int]
"""Namespace and number of one stored batch."""


@dataclass(slots=True)
class _Stored:
    entries: list[Entry]
    rows: int
    bytes: int  # of the rows in memory; on disk they are compressed


class RocksDbBatchList:
    """Implements `BatchList`. Used by the subtask's thread only; cuts are read by another."""

    def __init__(
        self,
        descriptor: BatchListDescriptor,
        max_parallelism: int,
        hash_keys: HashKeys,
        files: SortedFiles,
        memory: SlotMemory,
    ) -> None:
        self._descriptor = descriptor
        self._newer = HashMapBatchList(descriptor, max_parallelism, hash_keys)
        self._files = files
        self._memory = memory
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

    def namespaces_at_most(self, bound: int) -> list[int]:
        stored = {namespace for namespace in self._stored if namespace <= bound}
        return sorted(stored.union(self._newer.namespaces_at_most(bound)))

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        stored = self._stored.pop(namespace, None)
        older = [] if stored is None else self._read(stored.entries)
        return [*older, *self._newer.pop(namespace)]

    def key_groups_of(self, rows: pa.RecordBatch) -> KeyGroups:
        return self._newer.key_groups_of(rows)

    def settle(self) -> None:
        """Between two calls of the operator: rows may go to disk."""
        if self._newer.state_bytes > self._memory.bytes_per_state:
            self._flushes.run_until(self._cut(None))

    def close(self) -> None:
        self._files.close()

    def freeze(self) -> FrozenState:
        rows = len(self)
        reader = _Scan(self)
        flush = self._cut(reader)
        schema = snapshot_schema(self._descriptor)
        batches = reader.batches(self._flushes, flush)
        return FrozenState(self._descriptor.name, "batches", schema, rows, batches)

    def _read(self, entries: list[Entry]) -> list[pa.RecordBatch]:
        if self._last_flush is not None:
            self._flushes.run_until(self._last_flush)
        self._removed += entries
        found = self._files.get([_encoded(entry) for entry in entries])
        check(None not in found, "a stored batch is found", state=self._descriptor.name)
        return [decoded_batch(content) for content in found if content is not None]

    def _cut(self, reader: CutReader | None) -> Flush:
        """Note what was appended and removed since the last cut; somebody will write it."""
        entries: dict[Entry, pa.RecordBatch | None] = dict.fromkeys(self._removed)
        self._removed = []
        for namespace in self._newer.namespaces():
            stored = self._stored.setdefault(namespace, _Stored([], 0, 0))
            for batch in self._newer.pop(namespace):
                self._next_number += 1
                entries[namespace, self._next_number] = batch
                stored.entries.append((namespace, self._next_number))
                stored.rows += batch.num_rows
                stored.bytes += batch.nbytes
        flush = Flush(lambda: lambda: _sorted(entries), reader)
        self._flushes.add(flush)
        self._last_flush = flush
        return flush


class _Scan:
    """Reads the whole list as it was at one cut."""

    def __init__(self, origin: RocksDbBatchList) -> None:
        self._origin = origin
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def on_flushed(self, files: SortedFiles) -> None:
        self._rows = files.scan()

    def batches(self, flushes: Flushes, flush: Flush) -> Iterator[pa.RecordBatch]:
        flushes.run_until(flush)
        for key, content in self._rows:
            batch = decoded_batch(content)
            groups = self._origin.key_groups_of(batch)
            yield with_namespace(batch, decoded_namespace(key), groups)


def decoded_namespace(key: bytes) -> int:
    return int(_KEY.unpack(key)[0]) - _SIGN


def decoded_batch(content: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(content) as stream:
        return stream.read_next_batch()


def _encoded(entry: Entry) -> bytes:
    namespace, number = entry
    return _KEY.pack(namespace + _SIGN, number)


def _sorted(entries: dict[Entry, pa.RecordBatch | None]) -> SortedRows:
    for entry in sorted(entries):
        batch = entries[entry]
        yield _encoded(entry), None if batch is None else _stream_of(batch)


def _stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
