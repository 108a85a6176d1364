"""Checkpoints in a local directory: durable files, then one manifest, created if absent.

A data file is written under a temporary name while its length and digest are computed, made
durable, and linked into place. Linking is atomic and refuses to replace a file. The manifest is
written in the same way. Source: the publication order of Flink's
`FsCheckpointMetadataOutputStream`; digests are ours.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.disk.files import make_directory, make_durable
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.local_files import (
    content_of,
    is_there,
    link_if_absent,
    problem_of_file,
    problem_outside,
    reading,
    try_link,
    write_durably,
)
from pipelines.storage.manifest_file import MANIFEST, missing, seal, unseal
from pipelines.storage.roots import StorageRoots
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
    taken,
)


class FileSystemCheckpointStore:
    """Implements `CheckpointStore`. Touches nothing outside `roots`."""

    def __init__(self, roots: Sequence[str], *, compresses: bool = False) -> None:
        self._roots = StorageRoots(roots)
        self._compresses = compresses

    def prepare(self, location: str) -> None:
        try:
            make_directory(self._roots.directory(location))
        except OSError as error:
            raise Retryable(f"{location} cannot be made: {error}") from error

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
        return self._write(location, name, pieces)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._write(location, name, pieces)

    def _write(self, location: str, name: str, pieces: Iterable[bytes | memoryview]) -> FileHandle:
        directory = self._roots.directory(location)
        temporary = directory / f".{name}.{uuid.uuid4().hex}"
        try:
            make_directory(directory)
            handle = write_durably(temporary, name, pieces)
            if not link_if_absent(temporary, directory / name):
                raise taken(location, name)
            make_durable(directory)
        except OSError as error:
            raise Retryable(f"{name} cannot be written to {location}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return handle

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        directory = self._directory_of(location, file)
        problem = problem_of_file(directory, file)
        if problem is not None:
            raise CorruptSnapshot(problem)
        yield from decoded(file.name, _mapped(directory / file.name))

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        directory = self._directory_of(location, file)
        is_linked = may_share and try_link(directory, file, target)
        problem = problem_of_file(directory, file, copy_to=None if is_linked else target)
        if problem is not None:
            raise CorruptSnapshot(problem)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable if the storage fails; it is then unknown if the manifest was published,
        so the caller tries again or discards it."""
        directory = self._roots.directory(location)
        content = seal(manifest)
        temporary = directory / f".{MANIFEST}.{uuid.uuid4().hex}"
        try:
            make_directory(directory)
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            published = link_if_absent(temporary, directory / MANIFEST)
            make_durable(directory)
            make_durable(directory.parent)
            same = published or (directory / MANIFEST).read_bytes() == content
        except OSError as error:
            raise Retryable(f"{MANIFEST} cannot be written to {location}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if published:
            return Publication.PUBLISHED
        return Publication.ALREADY_PUBLISHED if same else Publication.CONFLICT

    def manifest(self, location: str) -> Manifest:
        path = self._roots.directory(location) / MANIFEST
        content = content_of(path)
        if content is None:
            raise missing(str(path))
        return unseal(str(path), content)

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        directory = self._directory_of(location, file)
        if not reads:
            return problem_outside(directory, file)
        problem = problem_of_file(directory, file)
        if problem is not None or not has_layout(file.name):
            return problem
        return problem_of_layout(file.name, _mapped(directory / file.name))

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        return damages_of(self, location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        names = self.names(root) if among is None else among
        directory = self._roots.directory(root)
        return [f"{root}/{name}" for name in names if is_there(directory / name / MANIFEST)]

    def names(self, root: str) -> list[str]:
        directory = self._roots.directory(root)
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:  # which does not mean that there is none
            raise Retryable(f"{root} cannot be listed: {error}") from error

    def delete(self, location: str, names: Iterable[str]) -> None:
        directory = self._roots.directory(location)
        try:
            for name in checked_names(location, names):
                (directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise Retryable(f"Files cannot be deleted in {location}: {error}") from error

    def _directory_of(self, location: str, file: FileHandle) -> Path:
        return self._roots.directory(location_of(location, file))

    def discard(self, location: str) -> None:
        """Raises Retryable if the manifest cannot be deleted; then the point is whole."""
        directory = self._roots.directory(location)
        if self._roots.is_root(directory):
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        try:
            (directory / MANIFEST).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                make_durable(directory)
        except OSError as error:
            raise Retryable(f"{MANIFEST} cannot be deleted in {location}: {error}") from error
        shutil.rmtree(directory, ignore_errors=True)  # without a manifest the rest is garbage


def _mapped(path: Path) -> pa.Buffer:
    with reading(path):
        return mapped(str(path))
