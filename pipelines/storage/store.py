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
    """Where the checkpoint at `location` finds the files that it shares with others."""
    return f"{location.rstrip('/').rpartition('/')[0]}/{SHARED}"


def location_of(location: str, file: FileHandle) -> str:
    """Where a file of the checkpoint at `location` lies."""
    return shared_location(location) if file.is_shared else location


def checked_names(location: str, names: Iterable[str]) -> list[str]:
    """Raises Rejected for what is no plain name: nothing outside of `location` is touched."""
    checked = list(names)
    for name in checked:
        if "/" in name or name in ("", ".", ".."):
            raise Rejected(f"{name!r} is no file name in {location}; nothing is deleted.")
    return checked


def taken(location: str, name: str) -> InvariantViolated:
    """Two files of one name would leave one of them in the place of both."""
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
"""While a person waits for the end. Reading and digesting both go on beside the interpreter."""

WatchVerification = Callable[[RestoreProgress], None]


def damages_of(
    store: "CheckpointStore", location: str, watch: WatchVerification | None
) -> list[Damage]:
    """`CheckpointStore.verify` for a store that can tell about one file."""
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
            Rejected: it lies outside of what is allowed.
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
        """The rows of a file after length and digest were verified.

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
        """Copy a file to the local disk while length and digest are verified.

        With `may_share` the target may be the stored file itself under a second name, because the
        caller never writes into it: where both are on one file system, nothing is copied.

        Raises:
            CorruptSnapshot: the file is missing, truncated or altered; `target` is not to be used.
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
        """Raises CorruptSnapshot (missing, truncated, altered, newer format), naming the file, and
        Retryable when the storage does not answer: that says nothing about the point."""
        ...

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        """Why a file is not what its handle says, as a sentence that names it; None when it is.

        `reads`: every byte, and that it would not unpack into far more. Otherwise only that it is
        there with its length, which costs one question of the storage.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        """Check the manifest and every file it names; empty means the point can be restored.

        With `watch`, which hears of every file on the caller's thread, several are read at once.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        """Locations of the points with a manifest directly below `root`, in no particular order.

        Written as `root` is, also where that is a symbolic link: callers compare locations.
        `among`: names to look at; of the others nothing is asked.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def names(self, root: str) -> list[str]:
        """Of everything directly below `root`, complete or not; when a driver or attempt starts.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def delete(self, location: str, names: Iterable[str]) -> None:
        """Delete files that no manifest names any more; those that are not there are passed over.

        Raises:
            Retryable: some could not be deleted.
        """
        ...

    def discard(self, location: str) -> None:
        """Delete a point: the manifest first, so that it never looks complete halfway."""
        ...
