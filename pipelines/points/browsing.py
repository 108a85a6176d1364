"""Reads the rows of a point's state, and pages through them in bounded time and memory.

Rows come in the order in which they are stored, subtask by subtask. A page ends when it is full or
its time is up, and says where the next one begins. Values become text for people; nothing stored is
ever executed. A page refuses a state that is too large for it; read such a state with Spark
(`pipelines.spark.read_state`).
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, Manifest, StateFormat, StateHandle
from pipelines.points.contents import (
    Column,
    Place,
    RowsPage,
    RowsQuestion,
    Value,
    Wanted,
    bytes_of,
    handles_of,
    shown_rows,
)
from pipelines.state.on_disk import stored_database
from pipelines.storage.store import CheckpointStore


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
    """Yields all rows of one subtask's state, or at least those in `key_groups`.

    Never yields more rows than the handle says. Raises CorruptSnapshot, naming the file.
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


PART_BYTES_MAX = 256 << 20
"""The limit for one subtask's files of a state: all are verified before a page shows a row."""


def rows_page(
    store: CheckpointStore,
    location: str,
    manifest: Manifest,
    question: RowsQuestion,
    is_time_up: Callable[[], bool],
) -> RowsPage:
    """Reads at least one batch, so that every page gets further than the one before.

    Raises:
        Rejected: there is no such state or column, the wanted value does not fit the column's
            type, or a part is too large.
        CorruptSnapshot: a file is damaged; the message names it.
        Retryable: the storage does not answer.
    """
    handles = handles_of(manifest, question.uid, question.state)
    columns = [Column(name, arrow_type) for name, arrow_type in handles[0].schema.items()]
    _check_wanted(question.wanted, columns)
    rows: list[list[Value]] = []
    end: Place | None = None
    with closing(_batches(store, location, handles, question.begin)) as batches:
        for begin, batch in batches:
            found = _matching(batch, question.wanted)[: question.limit - len(rows)]
            rows += shown_rows(batch.select([each.name for each in columns]).take(found))
            if len(rows) == question.limit:
                end = Place(begin.part, begin.row + found[-1].as_py() + 1)
                break
            if is_time_up():
                end = Place(begin.part, begin.row + batch.num_rows)
                break
    end = _normal(end, handles)
    total = sum(handle.rows for handle in handles)
    return RowsPage(columns, rows, end, _before(end, handles) if end else total, total)


def _check_wanted(wanted: Wanted | None, columns: list[Column]) -> None:
    names = [each.name for each in columns]
    if wanted is not None and wanted.column not in names:
        raise Rejected(
            f"The state has no column {wanted.column!r}; it has"
            f" {', '.join(repr(name) for name in names)}."
        )


def _batches(
    store: CheckpointStore, location: str, handles: list[StateHandle], begin: Place
) -> Generator[tuple[Place, pa.RecordBatch], None, None]:
    """The batches from `begin` on, each with the place of its first row."""
    for part in range(begin.part, len(handles)):
        _check_size(handles[part])
        skipped = begin.row if part == begin.part else 0
        row = 0
        with closing(rows_of(store, location, handles[part])) as batches:
            for batch in batches:
                first = max(0, skipped - row)
                if first < batch.num_rows:
                    yield Place(part, row + first), batch.slice(first)
                row += batch.num_rows


def _check_size(handle: StateHandle) -> None:
    if bytes_of(handle) > PART_BYTES_MAX:
        raise Rejected(
            f"The state {handle.state!r} has a part of {bytes_of(handle):,} bytes, more than a page"
            f" reads ({PART_BYTES_MAX:,}); read it as a Spark DataFrame, with"
            " pipelines.spark.read_state."
        )


def _matching(batch: pa.RecordBatch, wanted: Wanted | None) -> pa.Array:
    """Returns the numbers of the matching rows within the batch."""
    if wanted is None:
        return pa.array(range(batch.num_rows), pa.int64())
    column = batch.column(wanted.column)
    try:
        value = pa.scalar(wanted.value).cast(column.type)
        return pc.indices_nonzero(pc.equal(column, value))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Rejected(
            f"{wanted.value!r} is no value of the column {wanted.column!r}, which is {column.type}."
        ) from error


def _normal(place: Place | None, handles: list[StateHandle]) -> Place | None:
    """Turns a place behind a part's last row into the start of the next part; None is the end."""
    if place is None or place.row < handles[place.part].rows:
        return place
    return Place(place.part + 1) if place.part + 1 < len(handles) else None


def _before(place: Place, handles: list[StateHandle]) -> int:
    return place.row + sum(handle.rows for handle in handles[: place.part])
