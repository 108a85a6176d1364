"""Reads the rows of one subtask's state from the files of a point."""

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle
from pipelines.state.on_disk import stored_database


class ReadsFiles(Protocol):
    """The part of `CheckpointStore` that a restore needs."""

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]: ...

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None: ...


def rows_of(
    store: ReadsFiles,
    location: str,
    state: StateHandle,
    key_groups: KeyGroupRange | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """All rows of one subtask's state, or at least those of some key groups; but no more than its
    handle says.

    Raises CorruptSnapshot, naming the file.
    """
    own = state.key_group_range
    groups = key_groups or own
    left = state.rows

    def fetch(file: FileHandle, target: Path, *, may_share: bool = False) -> None:
        store.fetch(location, file, target, may_share=may_share)

    batches = stored_database.rows_of(
        state, lambda file: store.read_batches(location, file), fetch, groups
    )
    with closing(batches):
        for batch in batches:
            left -= batch.num_rows
            if left < 0:
                break
            yield batch
    is_part = state.format is StateFormat.ROCKSDB and groups != own
    if left < 0 or (left and not is_part):
        raise CorruptSnapshot(
            f"{state.file.name} does not hold the {state.rows} rows that the manifest in"
            f" {location} says."
        )
