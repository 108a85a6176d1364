"""How many bytes does a checkpoint upload after 1 % of a million keys were touched?

Expected by a sketch: the hashmap backend writes one row per touched key, with its row number and
a flag, so about 0.014 of the full snapshot. RocksDB writes one sorted file of the touched rows and
copies its small manifest, about 0.015. Compaction and new bases add to that now and then, so the
benchmark also reports the mean over many checkpoints.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.benchmark import Benchmark, Fields, at_most
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.runtime.subtask.snapshots.snapshotting import IncrementUpload
from pipelines.state.backend import StateBackend, TableDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory
from pipelines.storage.filesystem import FileSystemCheckpointStore

BARS = (at_most("rocksdb_ratio", 0.1), at_most("hashmap_ratio", 0.1))
MAX_PARALLELISM = 128
GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
COUNTS = TableDescriptor(
    name="counts",
    key=pa.schema([("user_id", pa.int64())]),
    value=pa.schema([("count", pa.int64())]),
    defaults={"count": 0},
    key_group_by=("user_id",),
)
BATCH_ROWS = 100_000
MEMORY_BYTES = 256 << 20
SEED = 7


class Measured:
    """One backend with its checkpoints in a directory of files."""

    def __init__(self, backend: StateBackend, root: Path, keys: int) -> None:
        self._backend = backend
        self._store = FileSystemCheckpointStore([str(root)])
        self._root = root
        self._table = backend.table(COUNTS)
        self._keys = keys
        self._rng = np.random.default_rng(SEED)
        self._newest = NO_CHECKPOINT

    def touch(self, users: np.ndarray) -> None:
        for start in range(0, len(users), BATCH_ROWS):
            part = users[start : start + BATCH_ROWS]
            rows = self._table.rows_for(pa.record_batch([part], schema=COUNTS.key))
            self._table.write("count", rows, np.asarray(self._table.read("count", rows)) + 1)
            self._backend.settle()

    def touch_a_part(self, part: float) -> None:
        self.touch(self._rng.choice(self._keys, int(self._keys * part), replace=False))

    def full_bytes(self) -> int:
        """Returns the bytes of a full snapshot, as without the setting."""
        [state] = self._backend.cut()
        file = self._store.write_batches(
            str(self._root / "full"), "full", state.schema, state.batches, open_format=False
        )
        return file.length

    def checkpoint(self) -> int:
        """Takes and completes a checkpoint; returns the uploaded bytes."""
        checkpoint_id = CheckpointId(self._newest + 1)
        [state] = self._backend.cut_increment(checkpoint_id, self._newest)
        if state.increment is None:
            raise RuntimeError("the backend hands out no increments")
        location = str(self._root / f"chk-{checkpoint_id}")
        upload = IncrementUpload(self._store, location, checkpoint_id, Attempt(1), "counts-0")
        state.increment.write(upload)
        self._newest = checkpoint_id
        return upload.uploaded_bytes


def measure(name: str, keys: int, part: float, checkpoints: int) -> Fields:
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root:
        directory = WorkingDirectory(Path(root) / "local", "bench")
        slot = RocksDbSlot(directory, SlotMemory(MEMORY_BYTES), is_incremental=True)
        backend = (
            slot(GROUPS, MAX_PARALLELISM)
            if name == "rocksdb"
            else HashMapBackend(GROUPS, MAX_PARALLELISM, is_incremental=True)
        )
        measured = Measured(backend, Path(root), keys)
        measured.touch(np.random.default_rng(SEED).permutation(keys))
        first = measured.checkpoint()
        # The smaller of the two, so that the ratio does not profit from a wasteful first one.
        full = min(first, measured.full_bytes())
        uploaded = []
        for _ in range(checkpoints):
            measured.touch_a_part(part)
            uploaded.append(measured.checkpoint())
        backend.close()
        directory.close()
    return {
        f"{name}_ratio": round(uploaded[0] / full, 4),
        f"{name}_mean_ratio": round(float(np.mean(uploaded)) / full, 4),
        f"{name}_full_bytes": full,
        f"{name}_uploaded_bytes": uploaded[0],
    }


def main() -> None:
    benchmark = Benchmark("incremental", __doc__)
    benchmark.options.add_argument("--keys", type=int, default=1_000_000)
    benchmark.options.add_argument("--part", type=float, default=0.01, help="of the keys, touched")
    benchmark.options.add_argument("--checkpoints", type=int, default=30)
    options = benchmark.options.parse()
    found: Fields = {"keys": options.keys, "checkpoints": options.checkpoints}
    for name in ("rocksdb", "hashmap"):
        found |= measure(name, options.keys, options.part, options.checkpoints)
    benchmark.report(found, BARS)


if __name__ == "__main__":
    main()
