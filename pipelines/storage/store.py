"""The contract of a checkpoint store: files first, the manifest last, and only once.

A checkpoint is a directory (`location`: an absolute path or URL prefix). Data files may appear in
any order and under names that no other attempt uses; the manifest is created if absent, after
every file it names is durable. A directory without a manifest is garbage, except `shared`, which
lies beside the checkpoints of a run and holds files that several of them refer to.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipelines.domain.errors import CorruptSnapshot, InvariantViolated, Rejected
from pipelines.domain.events import RestoreProgress
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.manifests import MANIFEST, files_of

SHARED = "shared"


def shared_location(location: str) -> str:
    """Returns where the checkpoint at `location` finds the files that it shares with others."""
    return f"{location.rstrip('/').rpartition('/')[0]}/{SHARED}"


def location_of(location: str, file: FileHandle) -> str:
    """Returns where a file of the checkpoint at `location` lies."""
    return shared_location(location) if file.is_shared else location


def checked_names(location: str, names: Iterable[str]) -> list[str]:
    """Raises Rejected unless all are plain names: nothing outside of `location` is touched."""
    checked = list(names)
    for name in checked:
        if "/" in name or name in ("", ".", ".."):
            raise Rejected(f"{name!r} is no file name in {location}; nothing is deleted.")
    return checked


def taken(location: str, name: str) -> InvariantViolated:
    """The error for a second file of one name, which would replace the first."""
    return InvariantViolated(f"{location} has a file {name} already, and it is not replaced.")


class Publication(Enum):
    PUBLISHED = auto()
    ALREADY_PUBLISHED = auto()  # the same manifest, byte for byte: an earlier try succeeded
    CONFLICT = auto()  # another manifest is there: someone else owns this checkpoint


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that does not verify; `problem` is a sentence that names it."""

    file: str
    problem: str
    is_shared: bool = False  # with other checkpoints, see `FileHandle`


VERIFYING_THREADS = 4
"""Used while a person waits. Reading and digesting both run without the interpreter's lock."""

WatchVerification = Callable[[RestoreProgress], None]


def damages_of(
    store: "CheckpointStore", location: str, watch: WatchVerification | None
) -> list[Damage]:
    """Implements `CheckpointStore.verify` for a store that can check one file."""
    try:
        manifest = store.manifest(location)
    except CorruptSnapshot as error:
        return [Damage(MANIFEST, str(error))]
    files = list(files_of(manifest))

    def problem_of(file: FileHandle) -> str | None:
        return store.problem_of(location, file, reads=True)

    if watch is None:
        return _damages(files, map(problem_of, files), lambda progress: None)
    with ThreadPoolExecutor(VERIFYING_THREADS, thread_name_prefix="verifying") as readers:
        return _damages(files, readers.map(problem_of, files), watch)


def _damages(
    files: list[FileHandle], problems: Iterable[str | None], watch: WatchVerification
) -> list[Damage]:
    damages, read_bytes = [], 0
    total_bytes = sum(file.length for file in files)
    for read_files, (file, problem) in enumerate(zip(files, problems, strict=True), 1):
        if problem is not None:
            damages.append(Damage(file.name, problem, file.is_shared))
        read_bytes += file.length
        watch(
            RestoreProgress(
                read_bytes=read_bytes,
                total_bytes=total_bytes,
                read_files=read_files,
                total_files=len(files),
                is_verifying=True,
            )
        )
    return damages


class CheckpointStore(Protocol):
    def prepare(self, location: str) -> None:
        """Make the place where a point will be written; it may be there already.

        Raises:
            Retryable: the storage takes nothing there at the moment.
            Rejected: the place is outside the roots.
        """
        ...

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool,
    ) -> FileHandle:
        """Write one durable file: Parquet if `open_format` (savepoints), else Arrow IPC.

        Raises:
            Retryable: the disk is full, read-only or slow; nothing usable was left behind.
            InvariantViolated: there is a file of this name already; it is left as it is.
        """
        ...

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        """Verify the length and digest of a file, and return its rows.

        Raises:
            CorruptSnapshot: the file is missing, truncated or altered; the message names it.
            Retryable: the storage does not answer.
        """
        ...

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        """Write one durable file as it comes. Raises as `write_batches` does."""
        ...

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        """Copy a file to the local disk, and verify its length and digest.

        With `may_share`, the caller never writes into the target. So it may be the stored file
        itself under a second name: if both are on one file system, nothing is copied.

        Raises:
            CorruptSnapshot: the file is missing, truncated or altered; do not use `target`.
            Retryable: the storage does not answer, or the local disk is full.
        """
        ...

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Make the checkpoint complete: durable, atomic, create-if-absent.

        Raises:
            Retryable: the storage failed; whether the point is complete is unknown.
        """
        ...

    def manifest(self, location: str) -> Manifest:
        """Read and check the manifest of a point.

        Raises:
            CorruptSnapshot: it is missing, truncated, altered or in a newer format; the message
                names the file.
            Retryable: the storage does not answer, which says nothing about the point.
        """
        ...

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        """Return why a file is not what its handle says, as a sentence that names it, or None.

        With `reads`, this checks every byte, and that the file would not unpack into far more.
        Otherwise, it only checks that the file exists with its length, at the cost of one request.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        """Check the manifest and every file it names; empty means the point can be restored.

        With `watch`, which gets a report of every file on the caller's thread, it reads several at
        once.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        """Return the locations of points with a manifest directly below `root`, in no order.

        They begin with `root` as it is written, even if that is a symbolic link, because callers
        compare locations. With `among`, it looks only at these names.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def names(self, root: str) -> list[str]:
        """Return the names of everything directly below `root`, complete or not.

        Used when a driver or an attempt starts.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def delete(self, location: str, names: Iterable[str]) -> None:
        """Delete files that no manifest names any more; missing ones are skipped.

        Raises:
            Retryable: some could not be deleted.
        """
        ...

    def discard(self, location: str) -> None:
        """Delete a point: the manifest first, so that it never looks complete halfway."""
        ...
