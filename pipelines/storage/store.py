"""The contract of a checkpoint store: files first, the manifest last, and only once.

A checkpoint is a directory (`location`: an absolute path or URL prefix). Data files may appear in
any order and under names that no other attempt uses; the manifest is created if absent, after
every file it names is durable. A directory without a manifest is garbage.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import pyarrow as pa

from pipelines.domain.snapshots import FileHandle, Manifest


class Publication(Enum):
    PUBLISHED = auto()
    ALREADY_PUBLISHED = auto()  # the same manifest, byte for byte: an earlier try succeeded
    CONFLICT = auto()  # another manifest is there: someone else owns this checkpoint


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that does not verify; `problem` is a sentence that names it."""

    file: str
    problem: str


class CheckpointStore(Protocol):
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
        """
        ...

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        """The rows of a file after length and digest were verified.

        Raises:
            CorruptSnapshot: the file is missing, truncated or altered; the message names it.
            Retryable: the storage does not answer.
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

    def verify(self, location: str) -> list[Damage]:
        """Check the manifest and every file it names; empty means the point can be restored.

        Raises:
            Retryable: the storage does not answer.
        """
        ...

    def published(self, root: str) -> list[str]:
        """Locations of all points with a manifest file below `root`, in no particular order."""
        ...

    def names(self, root: str) -> list[str]:
        """Of everything directly below `root`, complete or not; for a driver's start only."""
        ...

    def discard(self, location: str) -> None:
        """Delete a point: the manifest first, so that it never looks complete halfway."""
        ...
