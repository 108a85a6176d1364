"""The rows of the settings table about where snapshots are kept, and what the ledger keeps.

Part of `setting_table.DEFINITIONS`. `storage.placement` decides which places are allowed.

The rows of the settings table about state: where it is kept, and in how much memory.

Part of `setting_table.DEFINITIONS`. The backends are in the package `state`.
"""

from pipelines.domain.run import OBJECT_SCHEMES, scheme_of
from pipelines.domain.settings import CheckpointStorage, StateBackendType
from pipelines.domain.settings.readers import (
    Definition,
    bytes_within,
    memory_of_at_least,
    one_of,
    true_or_false,
)

_CHECKPOINTING = "execution.checkpointing."
CHECKPOINT_DIR = _CHECKPOINTING + "dir"
SAVEPOINT_DIR = _CHECKPOINTING + "savepoint-dir"
MAX_STATE_BYTES_LIMIT = 16 << 20


def _place(text: str) -> str:
    """An absolute path or a URL, without a slash at the end; empty if not set."""
    place = text.removeprefix("file://") if text.startswith("file:///") else text
    is_place = place.startswith("/") or (scheme_of(place) in OBJECT_SCHEMES and "://" in place)
    if text and not is_place:
        raise ValueError("expected an absolute path, file:///path or s3://bucket/prefix")
    return place.rstrip("/") or place


STORAGE_DEFINITIONS = (
    Definition(
        "execution.checkpointing.snapshot-compression",
        "compresses_snapshots",
        "false",
        true_or_false,
        "true: the state files of checkpoints are compressed (LZ4): less to write, more work"
        " for the processor. Canonical savepoints are compressed always, and RocksDB compresses its"
        " files itself.",
    ),
    Definition(
        "execution.ledger.digest",
        "digests_output",
        "true",
        true_or_false,
        "true: the ledger keeps a digest of what each sink is given, so that an audit of the output"
        " finds every changed value. false: it only counts the rows, which costs nothing; see"
        " docs/how-to/audit.md. Flink has no ledger.",
    ),
    Definition(
        _CHECKPOINTING + "storage",
        "checkpoint_storage",
        CheckpointStorage.FILESYSTEM,
        one_of(CheckpointStorage),
        "Where checkpoints are kept: filesystem (files, or an object store, see dir) or jobmanager:"
        " in the driver's memory, which takes small state only and is lost with the driver; a new"
        " driver then starts from the beginning, or from the point the run was restored from."
        " Savepoints are always files. In Flink, jobmanager is what one gets without a dir.",
    ),
    Definition(
        CHECKPOINT_DIR,
        "checkpoint_dir",
        "",
        _place,
        "Directory, or s3://bucket/prefix, below which each run keeps its checkpoints in"
        " <run id>/chk-<id>. Not set: in the run's own directory. It must lie in a root that the"
        " installation allows (FTDASH_STORAGE_ROOTS). Credentials come from the environment.",
    ),
    Definition(
        SAVEPOINT_DIR,
        "savepoint_dir",
        "",
        _place,
        "Directory, or s3://bucket/prefix, that savepoints are written to. Not set: the"
        " directory savepoints of the pipeline. The same roots are allowed as for dir.",
    ),
    Definition(
        _CHECKPOINTING + "jobmanager.max-state-size",
        "max_memory_state_bytes",
        "5 mb",
        bytes_within(1, MAX_STATE_BYTES_LIMIT),
        "With storage jobmanager: the most that one state of one subtask may take; a checkpoint"
        " with a larger one fails by name. Flink has the same bound, 5 MB, in its code only.",
    ),
)


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
        "Local directory for the databases of running slots. Not set: the directory for temporary"
        " files, as in Flink. Each slot removes its own at the end; the next slot removes what a"
        " killed one left.",
    ),
)
