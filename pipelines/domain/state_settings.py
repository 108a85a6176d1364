"""The rows of the settings table about state: where it is kept, and in how much memory.

Part of `setting_table.DEFINITIONS`. The backends are in the package `state`.
"""

from pipelines.domain.setting_readers import Definition, memory_of_at_least, one_of, true_or_false
from pipelines.domain.settings import StateBackendType

_ROCKSDB = "state.backend.rocksdb."
_LEAST_MEMORY_BYTES = 1 << 20


def _directory(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute path")
    return text


STATE_DEFINITIONS = (
    Definition(
        "state.backend.type",
        "state_backend",
        StateBackendType.HASHMAP,
        one_of(StateBackendType),
        "Where the state of operators is kept. hashmap: in memory, as columns; the fastest, and as"
        " large as the memory. rocksdb: on the local disk of each slot, behind a memory of bounded"
        " size.",
    ),
    Definition(
        "execution.checkpointing.incremental",
        "incremental_checkpoints",
        "false",
        true_or_false,
        "Whether a checkpoint uploads only what has changed since the last completed one and refers"
        " to the files of that one for the rest; its size is then what was uploaded. Both backends"
        " can. Savepoints are always whole.",
    ),
    Definition(
        _ROCKSDB + "memory.fixed-per-slot",
        "rocksdb_memory_bytes",
        "256 mb",
        memory_of_at_least(_LEAST_MEMORY_BYTES),
        "Memory that the RocksDB states of one slot share: half caches blocks of the files, half"
        " holds the rows in use. Flink has no default and takes a part of its managed memory.",
    ),
    Definition(
        _ROCKSDB + "localdir",
        "rocksdb_directory",
        "",
        _directory,
        "Local directory for the databases of running slots; as in Flink, the directory for"
        " temporary files unless it is set. Each slot removes its own at the end; what a killed"
        " slot leaves is removed by the next one.",
    ),
)
