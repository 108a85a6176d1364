"""One phase of `state_memory` in a separate process: a snapshot or a restore, and its memory.

Usage: python -m bench.recovery.state_memory_phase BACKEND PHASE ROOT ROWS. It measures the
anonymous memory of this process, including native memory of RocksDB and Arrow. Mapped files belong
to the page cache.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle
from pipelines.state.backend import StateBackend, TableDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory
from pipelines.storage.filesystem import FileSystemCheckpointStore

MAX_PARALLELISM = 128
GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
COLUMNS = 4
WIDE = TableDescriptor(
    name="wide",
    key=pa.schema([("id", pa.int64())]),
    value=pa.schema([(f"v{n}", pa.int64()) for n in range(COLUMNS)]),
    defaults={f"v{n}": 0 for n in range(COLUMNS)},
    key_group_by=("id",),
)
ROW_BYTES = 8 * (1 + COLUMNS)
BATCH_ROWS = 65_536
ROCKSDB_MEMORY_BYTES = 64 << 20
SAMPLE_S = 0.005


def fill(backend: StateBackend, rows: int) -> None:
    table = backend.table(WIDE)
    for start in range(0, rows, BATCH_ROWS):
        ids = np.arange(start, min(start + BATCH_ROWS, rows))
        numbers = table.rows_for(pa.record_batch([ids], schema=WIDE.key))
        for name in WIDE.value.names:
            table.write(name, numbers, ids)
        backend.settle()


def snapshot(backend: StateBackend, root: Path, rows: int) -> FileHandle:
    """Writes a snapshot on another thread, while each row of the state is updated once."""
    [state] = backend.cut()
    store = FileSystemCheckpointStore([str(root)])
    written: list[FileHandle] = []

    def write() -> None:
        written.append(
            store.write_batches(str(root), "wide", state.schema, state.batches, open_format=False)
        )

    upload = threading.Thread(target=write)
    upload.start()
    fill(backend, rows)
    upload.join()
    return written[0]


def run_phase(name: str, phase: str, root: Path, rows: int) -> dict[str, int]:
    with made(name, root) as warm:
        fill(warm, 1)  # so that the libraries' own memory does not count as state
    before = anonymous_bytes()
    with made(name, root) as backend:
        backend.table(WIDE)
        if phase == "snapshot":
            fill(backend, rows)
            held = anonymous_bytes() - before
            began_s = time.monotonic()
            with PeakMemory() as peak:
                handle = snapshot(backend, root, rows)
            (root / "handle.json").write_bytes(msgspec.json.encode(handle))
        else:
            handle = msgspec.json.decode((root / "handle.json").read_bytes(), type=FileHandle)
            store = FileSystemCheckpointStore([str(root)])
            began_s = time.monotonic()
            with PeakMemory() as peak:
                backend.restore("wide", store.read_batches(str(root), handle))
            held = anonymous_bytes() - before
        took_ms = int((time.monotonic() - began_s) * 1000)
        return {"held_bytes": held, "peak_bytes": peak.bytes - before, "took_ms": took_ms}


@contextmanager
def made(name: str, root: Path) -> Iterator[StateBackend]:
    if name == "hashmap":
        yield HashMapBackend(GROUPS, MAX_PARALLELISM)
        return
    directory = WorkingDirectory(root / "local", "bench")
    backend = RocksDbSlot(directory, SlotMemory(ROCKSDB_MEMORY_BYTES))(GROUPS, MAX_PARALLELISM)
    yield backend
    backend.close()
    directory.close()


class PeakMemory:
    """Samples the anonymous memory of this process."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()  # a restore holds the most at its end

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, anonymous_bytes())


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this kernel does not tell the anonymous memory")


if __name__ == "__main__":
    backend_name, phase_name, root_path, row_count = sys.argv[1:]
    print(json.dumps(run_phase(backend_name, phase_name, Path(root_path), int(row_count))))
