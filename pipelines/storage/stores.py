"""The store of a run: sends each location to the kind of store that its scheme names.

A run may keep checkpoints in one kind and savepoints in another, or be restored from a third.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.domain.run import MEMORY, scheme_of
from pipelines.domain.settings.resources import OBJECT_SCHEMES
from pipelines.domain.snapshots import FileHandle, Manifest, NewNames, renamed
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.memory import MemoryCheckpointStore
from pipelines.storage.store import CheckpointStore, Damage, Publication, WatchVerification

if TYPE_CHECKING:
    from pipelines.storage.object_store import ObjectCheckpointStore


class CheckpointStores:
    """Implements `CheckpointStore` by delegation; the file store refuses unknown kinds."""

    def __init__(
        self,
        roots: Sequence[str],
        max_memory_state_bytes: int,
        *,
        compresses: bool = False,
        renamed_point: str | None = None,
        new_names: NewNames | None = None,
    ) -> None:
        """`new_names`: the uids under which the operators of `renamed_point` are known here."""
        self._new_names = {} if renamed_point is None else {renamed_point: new_names or {}}
        self._roots = roots
        self._compresses = compresses
        self._files = FileSystemCheckpointStore(roots, compresses=compresses)
        self._memory = MemoryCheckpointStore(max_memory_state_bytes, compresses=compresses)

    @cached_property
    def _objects(self) -> "ObjectCheckpointStore":
        """Imported and made at first use: its client is an extra, and starts threads."""
        from pipelines.storage.object_store import ObjectCheckpointStore

        return ObjectCheckpointStore(self._roots, compresses=self._compresses)

    def prepare(self, location: str) -> None:
        self._of(location).prepare(location)

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool,
    ) -> FileHandle:
        store = self._of(location)
        return store.write_batches(location, stem, schema, batches, open_format=open_format)

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        return self._of(location).read_batches(location, file)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._of(location).write_file(location, name, pieces)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        self._of(location).fetch(location, file, target, may_share=may_share)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        return self._of(location).publish(location, manifest)

    def manifest(self, location: str) -> Manifest:
        found = self._of(location).manifest(location)
        return renamed(found, self._new_names.get(location, {}))

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        return self._of(location).problem_of(location, file, reads=reads)

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        return self._of(location).verify(location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        return self._of(root).published(root, among=among)

    def names(self, root: str) -> list[str]:
        return self._of(root).names(root)

    def delete(self, location: str, names: Iterable[str]) -> None:
        self._of(location).delete(location, names)

    def discard(self, location: str) -> None:
        self._of(location).discard(location)

    def _of(self, location: str) -> CheckpointStore:
        scheme = scheme_of(location)
        if scheme in OBJECT_SCHEMES:
            return self._objects
        return self._memory if scheme == MEMORY else self._files
