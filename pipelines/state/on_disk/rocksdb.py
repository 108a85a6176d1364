"""The RocksDB backend: all states of one operator of one subtask, on disk with bounded memory.

It has one database per state, below the slot's working directory. The states themselves are
`rocksdb_table` and `rocksdb_batch_list`.

Source: Flink's `EmbeddedRocksDBStateBackend`.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import (
    BatchListDescriptor,
    FrozenState,
    StoredDatabase,
    TableDescriptor,
)
from pipelines.state.evolution import snapshot_schema
from pipelines.state.hashing import key_hashes
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.keyed_backend import KeptBatchList, KeptTable, KeyedBackend
from pipelines.state.on_disk.rocksdb_batch_list import RocksDbBatchList
from pipelines.state.on_disk.rocksdb_table import RocksDbTable
from pipelines.state.on_disk.sorted_files import SlotMemory, SortedFiles, WorkingDirectory
from pipelines.state.on_disk.stored_database import (
    fetch_database,
    opened,
    reusable_files,
    row_schema,
)


@dataclass(frozen=True, slots=True)
class RocksDbSlot:
    """The resources that the databases of one slot share. Call it to make an operator's backend."""

    directory: WorkingDirectory
    memory: SlotMemory
    is_incremental: bool = False

    def __call__(self, key_groups: KeyGroupRange, max_parallelism: int) -> "RocksDbBackend":
        return RocksDbBackend(key_groups, max_parallelism, slot=self)


class RocksDbBackend(KeyedBackend):
    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        slot: RocksDbSlot,
        hash_keys: HashKeys = key_hashes,
    ) -> None:
        super().__init__(
            key_groups, max_parallelism, is_incremental=slot.is_incremental, hash_keys=hash_keys
        )
        self._slot = slot
        self._by_name: dict[str, RocksDbTable | RocksDbBatchList] = {}

    def cut_native(self) -> list[FrozenState]:
        return [state.freeze_native() for state in self._by_name.values()]

    def adopt(self, database: StoredDatabase) -> bool:
        state = self._by_name.get(database.handle.state)
        if state is None or len(state) or database.handle.key_group_range != self._key_groups:
            return False
        directory = self._slot.directory.fresh("db")
        fetch_database(database, directory)
        if row_schema(directory).snapshot != snapshot_schema(state.descriptor):
            shutil.rmtree(directory)
            return False
        files = opened(database, directory, self._slot.memory.cache)
        state.adopt(files, database.handle.rows, reusable_files(database))
        return True

    def settle(self) -> None:
        for state in self._by_name.values():
            state.settle()

    def close(self) -> None:
        """Closes the databases; the states cannot be used any more. Idempotent."""
        for state in self._by_name.values():
            state.close()
        self._by_name = {}

    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        table = RocksDbTable(
            descriptor=descriptor,
            own_groups=self._key_groups,
            max_parallelism=self._max_parallelism,
            hash_keys=self._hash_keys,
            files=self._files(),
            memory=self._slot.memory,
            scratch=self._scratch,
        )
        self._note(descriptor.name, table)
        return table

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        batches = RocksDbBatchList(
            descriptor,
            self._max_parallelism,
            self._hash_keys,
            self._files(),
            self._slot.memory,
            self._scratch,
        )
        self._note(descriptor.name, batches)
        return batches

    def _note(self, name: str, state: RocksDbTable | RocksDbBatchList) -> None:
        self._by_name[name] = state
        if self._is_incremental:
            self._incremental[name] = state

    def _scratch(self) -> Path:
        return self._slot.directory.fresh("cut")

    def _files(self) -> SortedFiles:
        return SortedFiles(self._slot.directory.fresh("db"), self._slot.memory.cache)
