"""RocksDB backends for tests.

Their databases are in memory if the machine has a file system for that. Otherwise every step of a
test would wait for the disk, and these tests are not about the disk.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.on_disk.rocksdb import RocksDbBackend, RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory

_MEMORY = Path("/dev/shm")
_ROOT = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
AMPLE_BYTES = 64 << 20
TINY_BYTES = 4_000
"""So little that almost every row leaves memory when the backend settles."""


def seeded(backend_fixture: str, names: list[str], count: int) -> pytest.MarkDecorator:
    """Uses `count` seeds for each backend, or a few on disk, where a step takes milliseconds."""
    pairs = [
        (name, seed)
        for name in names
        for seed in range(max(2, count // 10) if name.startswith("rocksdb") else count)
    ]
    return pytest.mark.parametrize((backend_fixture, "seed"), pairs, indirect=[backend_fixture])


class RocksDbBackends:
    """Creates backends, and closes all of them at the end."""

    def __init__(self, memory_bytes: int, is_incremental: bool) -> None:
        directory = WorkingDirectory(_ROOT, "test")
        self.slot = RocksDbSlot(directory, SlotMemory(memory_bytes), is_incremental)
        self._made: list[RocksDbBackend] = []

    def __call__(self, key_groups: KeyGroupRange, max_parallelism: int) -> RocksDbBackend:
        backend = self.slot(key_groups, max_parallelism)
        self._made.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._made:
            backend.close()
        self.slot.directory.close()


@contextmanager
def rocksdb_backends(
    memory_bytes: int = AMPLE_BYTES, *, is_incremental: bool = False
) -> Iterator[RocksDbBackends]:
    backends = RocksDbBackends(memory_bytes, is_incremental)
    try:
        yield backends
    finally:
        backends.close()
