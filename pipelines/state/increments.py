"""The contract of increments: what one state writes for a checkpoint, and the handles it gets back.

`protocol.increments` decides which increment builds on which; the runtime decides where files go.

Shares `protocol.increments` between the thread of cuts and notices and that of uploads.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from pipelines.domain.ids import BUILD_ON_NOTHING, CheckpointId
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle, StatePart
from pipelines.protocol.shared_files import CompletedIncrements


class IncrementFiles(Protocol):
    """Where one state writes its increment; names are made unique from `label`."""

    def write_rows(
        self, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> FileHandle:
        """A file of rows that later checkpoints may refer to."""
        ...

    def copy(self, label: str, path: Path, *, is_shared: bool) -> FileHandle:
        """Stores a file of the local disk unchanged."""
        ...


@dataclass(frozen=True, slots=True)
class StoredIncrement:
    format: StateFormat
    file: FileHandle
    parts: tuple[StatePart, ...]


class Increment(Protocol):
    """What one state has to write for a checkpoint; may be used once, from any thread."""

    def write(self, files: IncrementFiles) -> StoredIncrement: ...


class FetchFile(Protocol):
    """Fetches one file of a snapshot to the local disk, verified; see `CheckpointStore.fetch`."""

    def __call__(self, file: FileHandle, target: Path, *, may_share: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """One state of a snapshot whose files are a database."""

    handle: StateHandle
    fetch: FetchFile
    is_own: bool  # of this run, so later checkpoints may refer to its files


T = TypeVar("T")


class IncrementLog(Generic[T]):
    def __init__(self, restored: T | None = None) -> None:
        self._increments = CompletedIncrements(restored)
        self._lock = threading.Lock()

    def base(self, confirmed_id: CheckpointId) -> T | None:
        """What the next increment builds on; everything up to `confirmed_id` is complete."""
        with self._lock:
            if confirmed_id == BUILD_ON_NOTHING:
                self._increments.on_damaged()
            self._increments.on_completed(confirmed_id)
            return self._increments.base

    def on_written(self, checkpoint_id: CheckpointId, increment: T | None) -> None:
        with self._lock:
            self._increments.on_written(checkpoint_id, increment)

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_completed(checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._increments.on_aborted(checkpoint_id)
