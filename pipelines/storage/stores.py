"""The store of a run: sends each location to the kind of store that its scheme names.

A run may keep checkpoints in one kind and savepoints in another, or be restored from a third.

The smallest kind is here: checkpoints in the coordinator's memory. A file is the `content` of its
handle and travels in the acknowledgement, so the manifest holds the whole point; the driver keeps
manifests, and slots keep nothing. These checkpoints are lost with the driver: a restarted attempt
recovers from them, a new driver of the run does not.

Source: Flink, `JobManagerCheckpointStorage` and `ByteStreamStateHandle`.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from pipelines.disk.files import RunningDigest
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.run import MEMORY, scheme_of
from pipelines.domain.settings.resources import OBJECT_SCHEMES
from pipelines.domain.snapshots import FileHandle, Manifest, NewNames, renamed
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST, missing, problem_of_name, seal, unseal
from pipelines.storage.state_file import (
    decoded,
    encoded,
    file_name,
    handle_from,
    handle_of,
    has_layout,
    problem_of_content,
    problem_of_layout,
    problem_of_length,
)
from pipelines.storage.store import (
    CheckpointStore,
    Damage,
    Publication,
    WatchVerification,
    damages_of,
)

if TYPE_CHECKING:
    from pipelines.storage.object_store import ObjectCheckpointStore


MAX_POINT_BYTES = 32 << 20
"""The largest size of one point: every slot of an attempt gets all of it in one control frame."""


class MemoryCheckpointStore:
    """Implements `CheckpointStore`. Any thread may use it."""

    def __init__(self, max_state_bytes: int, *, compresses: bool = False) -> None:
        self._compresses = compresses
        self._max_state_bytes = max_state_bytes
        self._lock = threading.Lock()
        self._points: dict[str, bytes] = {}  # location -> the manifest's file

    def prepare(self, location: str) -> None:
        """Does nothing: there is nothing to create."""

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool,
    ) -> FileHandle:
        name = file_name(stem, open_format=open_format)
        pieces = encoded(schema, batches, open_format=open_format, compresses=self._compresses)
        return self._kept(name, pieces)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._kept(name, pieces)

    def _kept(self, name: str, pieces: Iterable[bytes | memoryview]) -> FileHandle:
        digest, content = RunningDigest(), bytearray()
        for piece in pieces:
            digest.update(piece)
            content += piece
            if digest.length > self._max_state_bytes:
                raise _too_large(name, f"{self._max_state_bytes} bytes")
        return msgspec.structs.replace(handle_from(name, digest), content=bytes(content))

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        problem = _problem_of(location, file)
        if problem is not None or file.content is None:
            raise CorruptSnapshot(problem or _missing(location, file))
        yield from decoded(file.name, pa.py_buffer(file.content))

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        del may_share  # there is no file on a disk to share
        problem = _problem_of(location, file)
        if problem is not None or file.content is None:
            raise CorruptSnapshot(problem or _missing(location, file))
        try:
            target.write_bytes(file.content)
        except OSError as error:
            raise Retryable(f"{target} cannot be written: {error}") from error

    def publish(self, location: str, manifest: Manifest) -> Publication:
        content = seal(manifest)
        if len(content) > MAX_POINT_BYTES:
            raise _too_large(f"The checkpoint at {location}", f"{MAX_POINT_BYTES} bytes")
        with self._lock:
            found = self._points.setdefault(location, content)
        if found is content:
            return Publication.PUBLISHED
        return Publication.ALREADY_PUBLISHED if found == content else Publication.CONFLICT

    def manifest(self, location: str) -> Manifest:
        where = f"{location}/{MANIFEST}"
        with self._lock:
            content = self._points.get(location)
        if content is None:
            raise missing(where)
        return unseal(where, content)

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        problem = _problem_of(location, file)
        if problem is not None or file.content is None or not (reads and has_layout(file.name)):
            return problem
        return problem_of_layout(file.name, pa.py_buffer(file.content))

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        return damages_of(self, location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        with self._lock:
            found = [location for location in self._points if _parent(location) == root]
        return [f for f in found if among is None or f.rpartition("/")[2] in among]

    def names(self, root: str) -> list[str]:
        return [location.rpartition("/")[2] for location in self.published(root)]

    def delete(self, location: str, names: Iterable[str]) -> None:
        """Does nothing: files are parts of manifests, and disappear with the last of these."""

    def discard(self, location: str) -> None:
        with self._lock:
            self._points.pop(location, None)


def check_travels(files: Iterable[FileHandle]) -> None:
    """Raises Retryable if one subtask's content is too large for a control frame."""
    total = sum(len(file.content) for file in files if file.content is not None)
    if total > MAX_POINT_BYTES:
        raise _too_large("The state of one subtask", f"{MAX_POINT_BYTES} bytes")


def _problem_of(location: str, file: FileHandle) -> str | None:
    problem = problem_of_name(location, file.name)
    if problem is not None:
        return problem
    where, content = f"{location}/{file.name}", file.content
    if content is None:
        return _missing(location, file)
    return problem_of_length(where, len(content), file) or problem_of_content(
        where, handle_of(file.name, [content], like=file.digest), file
    )


def _missing(location: str, file: FileHandle) -> str:
    return f"{location}/{file.name} is missing."


def _too_large(what: str, most: str) -> Retryable:
    return Retryable(
        f"{what} is larger than {most}, the most that the coordinator's memory takes; set"
        " execution.checkpointing.storage to filesystem, or, for a single state, raise"
        " execution.checkpointing.jobmanager.max-state-size."
    )


def _parent(location: str) -> str:
    return location.rpartition("/")[0]


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
        """`new_names` has the uids that the operators of `renamed_point` have here."""
        self._new_names = {} if renamed_point is None else {renamed_point: new_names or {}}
        self._roots = roots
        self._compresses = compresses
        self._files = FileSystemCheckpointStore(roots, compresses=compresses)
        self._memory = MemoryCheckpointStore(max_memory_state_bytes, compresses=compresses)

    @cached_property
    def _objects(self) -> "ObjectCheckpointStore":
        """Imported and made at first use, because its client is an extra and starts threads."""
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
