"""The RocksDB backend: all states of one operator of one subtask, on disk behind a bounded memory.

One database per state, below the working directory of the slot. The states themselves are
`rocksdb_table` and `rocksdb_batch_list`.

Source: Flink's `EmbeddedRocksDBStateBackend`.
"""

from dataclasses import dataclass

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import BatchListDescriptor, TableDescriptor
from pipelines.state.hashing import key_hashes
from pipelines.state.keyed_backend import KeptBatchList, KeptTable, KeyedBackend
from pipelines.state.memory_share import SlotMemory
from pipelines.state.rocksdb_batch_list import RocksDbBatchList
from pipelines.state.rocksdb_table import RocksDbTable
from pipelines.state.sorted_files import SortedFiles
from pipelines.state.table import HashKeys
from pipelines.state.working_directory import WorkingDirectory


@dataclass(frozen=True, slots=True)
class RocksDbSlot:
    """What the databases of one slot share; calling it makes the backend of one operator."""

    directory: WorkingDirectory
    memory: SlotMemory

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
        super().__init__(key_groups, max_parallelism, hash_keys=hash_keys)
        self._slot = slot
        self._on_disk: list[RocksDbTable | RocksDbBatchList] = []

    def settle(self) -> None:
        for state in self._on_disk:
            state.settle()

    def close(self) -> None:
        """Idempotent. The states cannot be used any more."""
        for state in self._on_disk:
            state.close()
        self._on_disk = []

    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        table = RocksDbTable(
            descriptor,
            self._key_groups,
            self._max_parallelism,
            self._hash_keys,
            self._files(),
            self._slot.memory,
        )
        self._on_disk.append(table)
        return table

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        batches = RocksDbBatchList(
            descriptor, self._max_parallelism, self._hash_keys, self._files(), self._slot.memory
        )
        self._on_disk.append(batches)
        return batches

    def _files(self) -> SortedFiles:
        return SortedFiles(self._slot.directory.fresh("db"), self._slot.memory.cache)
