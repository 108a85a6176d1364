"""Reads every byte of a point in steps, so that no caller waits for all of it at once.

A step begins at a file and reads until its time is up; the caller keeps how far it has come. Files
are immutable, so steps may be repeated and may be far apart. Touches nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.domain.errors import CorruptSnapshot
from pipelines.storage.manifest_file import files_of
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
