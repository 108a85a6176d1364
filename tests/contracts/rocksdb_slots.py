"""RocksDB backends for tests, below a temporary directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.memory_share import SlotMemory
from pipelines.state.rocksdb import RocksDbBackend, RocksDbSlot
from pipelines.state.working_directory import WorkingDirectory

AMPLE_BYTES = 64 << 20
TINY_BYTES = 4_000
"""So little that almost every row leaves the memory when the backend settles."""


def seeded(backend_fixture: str, names: list[str], count: int) -> pytest.MarkDecorator:
    """Each backend with `count` seeds; on disk, where a step takes milliseconds, with a few."""
    pairs = [
        (name, seed)
        for name in names
        for seed in range(max(2, count // 10) if name.startswith("rocksdb") else count)
    ]
    return pytest.mark.parametrize((backend_fixture, "seed"), pairs, indirect=[backend_fixture])


class RocksDbBackends:
    """Makes backends, and closes them all at the end."""

    def __init__(self, root: Path, memory_bytes: int, is_incremental: bool) -> None:
        directory = WorkingDirectory(root, "test")
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
    root: Path, memory_bytes: int = AMPLE_BYTES, *, is_incremental: bool = False
) -> Iterator[RocksDbBackends]:
    backends = RocksDbBackends(root, memory_bytes, is_incremental)
    yield backends
    backends.close()
