"""Decides which state backend a slot's operators get, and sets it up on this machine.

Follows the settings; the backends themselves are the package `state`.
"""

import errno
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.settings import StateBackendType, StateOptions
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory

_WRONG = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""The directory's name or the rights to it are wrong, and no wait repairs that."""


@dataclass(frozen=True, slots=True)
class StateBackends:
    """Call `close` once no operator runs any more."""

    create: BackendFactory
    close: Callable[[], None]


def state_backends(options: StateOptions, label: str) -> StateBackends:
    """`label` names the slot in its directory.

    Raises Rejected if that can never be made there, Retryable if it cannot be made now.
    """
    match options.backend:
        case StateBackendType.HASHMAP:
            create = partial(HashMapBackend, is_incremental=options.is_incremental)
            return StateBackends(create, lambda: None)
        case StateBackendType.ROCKSDB:
            directory = _directory(options.rocksdb_directory, label)
            memory = SlotMemory(options.rocksdb_memory_bytes)
            slot = RocksDbSlot(directory, memory, options.is_incremental)
            return StateBackends(slot, directory.close)


def _directory(root: str, label: str) -> WorkingDirectory:
    place = root or tempfile.gettempdir()
    try:
        return WorkingDirectory(Path(place), label)
    except OSError as error:
        what = f"No database can be kept in {place}: {error.strerror}."
        if error.errno not in _WRONG:  # a full or failing disk, too many open files
            raise Retryable(what) from error
        raise Rejected(
            f"{what} Set state.backend.rocksdb.localdir to a directory that every slot can write"
            " to."
        ) from error
