"""Reads every byte of a point in steps, so that no caller waits for all of it at once.

A step begins at a file and reads until its time is up; the caller keeps how far it has come. Files
are immutable, so steps may be repeated and may be far apart. Touches nothing.

Deletes a savepoint for good. The caller must know that no run still needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.status import CheckpointKind
from pipelines.storage.state_file import files_of
from pipelines.storage.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Inspected:
    """How far the reading has come, in files and bytes; `problem` ends it."""

    files_read: int
    files: int
    bytes_read: int
    bytes: int
    problem: str = ""

    @property
    def is_over(self) -> bool:
        return bool(self.problem) or self.files_read == self.files


def inspect(
    location: str, store: CheckpointStore, files_read: int, is_time_up: Callable[[], bool]
) -> Inspected:
    """Takes one step of at least one file, after the first `files_read`.

    Raises:
        Rejected: `location` lies outside the storage.
        Retryable: the storage does not answer.
    """
    try:
        files = list(files_of(store.manifest(location)))
    except CorruptSnapshot as error:
        return Inspected(0, 0, 0, 0, str(error))
    problem, index = None, min(files_read, len(files))
    while index < len(files) and problem is None:
        problem = store.problem_of(location, files[index], reads=True)
        index += problem is None
        if is_time_up():
            break
    lengths = [file.length for file in files]
    return Inspected(index, len(files), sum(lengths[:index]), sum(lengths), problem or "")


def dispose(location: str, store: CheckpointStore) -> None:
    """Deletes only whole savepoints: checkpoints belong to their run, and other files are not ours.

    Raises:
        Rejected: `location` lies outside the storage or holds no savepoint.
        Retryable: the storage failed; then the savepoint is whole, or its manifest is gone.
    """
    manifest = store.manifest(location)
    if manifest.kind is not CheckpointKind.SAVEPOINT:
        raise Rejected(
            f"{location} is a {manifest.kind.lower()} and no savepoint; its run deletes it when"
            " newer ones replace it."
        )
    store.discard(location)
