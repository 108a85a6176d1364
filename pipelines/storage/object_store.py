"""Checkpoints in an object store: files first, then one manifest, put only if it is absent.

It renames nothing, and lists nothing to take or restore a point. Files larger than a part are
uploaded in parts, only a few of them in memory at a time; an aborted upload leaves no object.
Credentials, region and endpoint come from the environment (`AWS_...`), or from the machine's role.
"""

import contextlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.manifests import MANIFEST, missing, seal, unseal
from pipelines.storage.object_files import ObjectFiles, ObjectStoreLimits
from pipelines.storage.roots import ObjectPrefix, StorageRoots
from pipelines.storage.state_file import (
    decoded,
    encoded,
    file_name,
    has_layout,
    mapped,
    problem_of_layout,
)
from pipelines.storage.store import (
    Damage,
    Publication,
    WatchVerification,
    checked_names,
    damages_of,
    location_of,
)

PUBLISH_TRIES = 2


class ObjectCheckpointStore:
    """Implements `CheckpointStore`. Needs a store that honours `If-None-Match: *` on a put."""

    def __init__(
        self,
        roots: Sequence[str],
        limits: ObjectStoreLimits | None = None,
        *,
        compresses: bool = False,
    ) -> None:
        self._compresses = compresses
        self._roots = StorageRoots(roots)
        self._files = ObjectFiles(limits or ObjectStoreLimits())

    def prepare(self, location: str) -> None:
        """Sends nothing: a prefix need not be created."""
        self._roots.prefix(location)

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
        return self._files.write(self._roots.prefix(location), name, pieces)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._files.write(self._roots.prefix(location), name, map(memoryview, pieces))

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        """The file is held in an unlinked, mapped temporary file while its rows are in use."""
        prefix = self._prefix_of(location, file)
        with _spooling(file) as spool:
            problem = self._files.problem_of(prefix, file, spool.write)
            if problem is not None:
                raise CorruptSnapshot(problem)
            content = _mapped(spool)
        yield from decoded(file.name, content)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        del may_share  # the file is on another machine
        prefix = self._prefix_of(location, file)
        try:
            with open(target, "xb") as copy:
                problem = self._files.problem_of(prefix, file, copy.write)
        except OSError as error:
            raise Retryable(f"{target} cannot be written: {error}") from error
        if problem is not None:
            raise CorruptSnapshot(problem)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable if the storage fails; it is then unknown if the manifest was published,
        so the caller tries again or discards it."""
        prefix, content = self._roots.prefix(location), seal(manifest)
        tries = Retrying(
            stop=stop_after_attempt(PUBLISH_TRIES),
            retry=retry_if_exception_type(Retryable),
            reraise=True,
        )
        return tries(self._try_publish, prefix, content)

    def manifest(self, location: str) -> Manifest:
        """Also raises Retryable, if the storage does not answer: that damages nothing."""
        prefix = self._roots.prefix(location)
        where = f"{prefix}/{MANIFEST}"
        content = self._files.content(prefix, MANIFEST)
        if content is None:
            raise missing(where)
        return unseal(where, content)

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        prefix = self._prefix_of(location, file)
        if not reads:
            return self._files.problem_outside(prefix, file)
        if not has_layout(file.name):
            return self._files.problem_of(prefix, file, _forget)
        with _spooling(file) as spool:
            problem = self._files.problem_of(prefix, file, spool.write)
            return problem or problem_of_layout(file.name, _mapped(spool))

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        """Raises Retryable if the storage does not answer."""
        return damages_of(self, location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        prefix = self._roots.prefix(root)
        return [
            f"{prefix}/{name}"
            for name in (self._files.names(prefix) if among is None else among)
            if self._files.exists(prefix, f"{name}/{MANIFEST}")
        ]

    def names(self, root: str) -> list[str]:
        return self._files.names(self._roots.prefix(root))

    def delete(self, location: str, names: Iterable[str]) -> None:
        self._files.delete(self._roots.prefix(location), checked_names(location, names))

    def discard(self, location: str) -> None:
        """Raises Retryable if the manifest cannot be deleted; then the point is whole."""
        prefix = self._roots.prefix(location)
        if self._roots.is_root(prefix):
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        self._files.delete(prefix, [MANIFEST])
        with contextlib.suppress(Retryable):  # without a manifest the rest is garbage
            self._files.delete_below(prefix)

    def _try_publish(self, prefix: ObjectPrefix, content: bytes) -> Publication:
        """The client does not repeat a conditional put, because that is not safe in general. Here
        it is: even after a failed put, the content shows whose manifest is there."""
        try:
            if self._files.put_if_absent(prefix, MANIFEST, content):
                return Publication.PUBLISHED
        except Retryable:
            found = self._files.content(prefix, MANIFEST)
            if found is None:
                raise
        else:
            found = self._files.content(prefix, MANIFEST)
        return Publication.ALREADY_PUBLISHED if found == content else Publication.CONFLICT

    def _prefix_of(self, location: str, file: FileHandle) -> ObjectPrefix:
        return self._roots.prefix(location_of(location, file))


@contextlib.contextmanager
def _spooling(file: FileHandle) -> Iterator[IO[bytes]]:
    """A temporary file of this machine; its failures say nothing about the object."""
    try:
        with tempfile.TemporaryFile(prefix="point-") as spool:
            yield spool
    except OSError as error:
        raise Retryable(f"{file.name} cannot be held on the local disk: {error}") from error


def _mapped(spool: IO[bytes]) -> pa.Buffer:
    spool.flush()
    return mapped(f"/proc/self/fd/{spool.fileno()}")


def _forget(block: bytes) -> None:
    """Drops the block, if the caller only needs to know that a file is whole."""
