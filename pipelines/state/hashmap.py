"""The hashmap backend: all states of one operator of one subtask, in memory.

The states themselves are `table` and `batch_list`. The class itself is the `BackendFactory`.
"""

from pipelines.state.backend import BatchListDescriptor, TableDescriptor
from pipelines.state.batch_list import HashMapBatchList
from pipelines.state.keyed_backend import KeptBatchList, KeptTable, KeyedBackend
from pipelines.state.table import HashMapTable


class HashMapBackend(KeyedBackend):
    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        return HashMapTable(descriptor, self._key_groups, self._max_parallelism, self._hash_keys)

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        return HashMapBatchList(descriptor, self._max_parallelism, self._hash_keys)
