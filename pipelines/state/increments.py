"""The contract of increments: what one state writes for a checkpoint, and the handles it gets back.

`protocol.increments` decides which increment builds on which; the runtime decides where files go.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle, StatePart


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
