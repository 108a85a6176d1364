"""Decides where one state writes its increment for one checkpoint, in a checkpoint store.

Implements `state.backend.IncrementFiles`; counts the bytes that are really uploaded.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.disk.digests import blocks_of
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.domain.snapshots import FileHandle
from pipelines.protocol.shared_files import shared_name
from pipelines.storage.state_file import SEPARATOR
from pipelines.storage.store import CheckpointStore, shared_location


class IncrementUpload:
    """`stem` is unique among the states and subtasks of the run."""

    def __init__(
        self,
        store: CheckpointStore,
        location: str,
        checkpoint_id: CheckpointId,
        attempt: Attempt,
        stem: str,
    ) -> None:
        self._store = store
        self._location = location
        self._checkpoint_id = checkpoint_id
        self._attempt = attempt
        self._stem = stem
        self.uploaded_bytes = 0

    def write_rows(
        self, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> FileHandle:
        place = shared_location(self._location)
        written = self._store.write_batches(
            place, self._name(label), schema, batches, open_format=False
        )
        return self._counted(written, is_shared=True)

    def copy(self, label: str, path: Path, *, is_shared: bool) -> FileHandle:
        place = shared_location(self._location) if is_shared else self._location
        written = self._store.write_file(place, self._name(label), blocks_of(path))
        return self._counted(written, is_shared=is_shared)

    def _name(self, label: str) -> str:
        return shared_name(self._checkpoint_id, self._attempt, f"{self._stem}{SEPARATOR}{label}")

    def _counted(self, written: FileHandle, *, is_shared: bool) -> FileHandle:
        self.uploaded_bytes += written.length
        return msgspec.structs.replace(written, is_shared=is_shared)
