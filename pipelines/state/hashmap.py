"""The hashmap backend: all states of one operator of one subtask, in memory.

The states themselves are `table` and `batch_list`, or `incremental_table` and
`incremental_batch_list` if checkpoints are to hold only changes. The class itself is the
`BackendFactory`.
"""

from pipelines.state.backend import BatchListDescriptor, TableDescriptor
from pipelines.state.batch_list import HashMapBatchList
from pipelines.state.incremental_batch_list import IncrementalBatchList
from pipelines.state.incremental_table import IncrementalTable
from pipelines.state.keyed_backend import KeptBatchList, KeptTable, KeyedBackend
from pipelines.state.table import HashMapTable


class HashMapBackend(KeyedBackend):
    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        shape = (descriptor, self._key_groups, self._max_parallelism, self._hash_keys)
        if not self._is_incremental:
            return HashMapTable(*shape)
        table = IncrementalTable(*shape)
        self._incremental[descriptor.name] = table
        return table

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        shape = (descriptor, self._max_parallelism, self._hash_keys)
        if not self._is_incremental:
            return HashMapBatchList(*shape)
        batches = IncrementalBatchList(*shape)
        self._incremental[descriptor.name] = batches
        return batches
