"""Compares two points part by part, in bounded memory; also reads a point in steps.

A part is some key groups of one state, small enough to be held in memory. It is the whole state if
the two points have different numbers of key groups, or the state has none. Rows are matched by the
key that the operator declares, or compared as a whole if it declares none, one column at a time.
Equal rows become equal numbers, so nothing is hashed and nothing can collide. Null equals null, and
NaN equals NaN. A part that is too large is reported, with its rows counted.

No caller waits until every byte of a point has been read. A step begins at a file and reads until
its time is up; the caller remembers how far it got. Files are immutable, so steps may be repeated
and may be far apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import KeyGroupRange, Redistribution, range_of
from pipelines.domain.snapshots import Manifest, StateHandle
from pipelines.flows.finding import find_flow
from pipelines.packages.loading import LoadedCode
from pipelines.points.browsing import rows_of
from pipelines.points.contents import (
    EXAMPLES_MAX,
    ChangedRow,
    StateDifference,
    Value,
    bytes_of,
    shown_rows,
)
from pipelines.points.fit import declared_states
from pipelines.storage.manifests import files_of
from pipelines.storage.store import CheckpointStore

Numbers = npt.NDArray[np.int64]

NULL = -1
"""The number of null; values have numbers from 0 on."""


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Row numbers: `added` in the right table, `removed` in the left one, `changed` in both.

    `changed` is None if rows have no key.
    """

    added: Numbers
    removed: Numbers
    changed: tuple[Numbers, Numbers] | None


def by_key(
    left: pa.Table, right: pa.Table, key: Sequence[str], columns: Sequence[str]
) -> RowDifferences | None:
    """Returns None if the key is not unique."""
    left_keys, right_keys = _numbered(left, right, key)
    if _repeats(left_keys) or _repeats(right_keys):
        return None
    _, in_left, in_right = np.intersect1d(
        left_keys, right_keys, assume_unique=True, return_indices=True
    )
    left_rows, right_rows = _numbered(left, right, columns)
    differs = left_rows[in_left] != right_rows[in_right]
    return RowDifferences(
        added=np.flatnonzero(~np.isin(right_keys, left_keys)),
        removed=np.flatnonzero(~np.isin(left_keys, right_keys)),
        changed=(in_left[differs], in_right[differs]),
    )


def by_row(left: pa.Table, right: pa.Table, columns: Sequence[str]) -> RowDifferences:
    """Compares whole rows: one that occurs once on the left and twice on the right adds one row."""
    left_rows, right_rows = _numbered(left, right, columns)
    return RowDifferences(
        added=_surplus(right_rows, left_rows), removed=_surplus(left_rows, right_rows), changed=None
    )


def _surplus(these: Numbers, those: Numbers) -> Numbers:
    """Returns the rows that occur more often in `these` than in `those`: the last ones of each."""
    size = int(max(these.max(initial=-1), those.max(initial=-1))) + 1
    there = np.bincount(those, minlength=size)
    order = np.argsort(these, kind="stable")
    ordered = these[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.arange(len(these)) - first  # among equal rows
    return np.sort(order[rank >= there[ordered]])


def _numbered(left: pa.Table, right: pa.Table, columns: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Numbers the rows: equal where rows are equal in these columns, and below the row count."""
    numbers = np.zeros(left.num_rows + right.num_rows, np.int64)
    for name in columns:
        codes = _codes(left.column(name), right.column(name))
        together = numbers * (codes.max(initial=0) + 1) + codes
        numbers = np.unique(together, return_inverse=True)[1].astype(np.int64)
    return numbers[: left.num_rows], numbers[left.num_rows :]


def _codes(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Numbers:
    """Returns a number for each value; equal values have equal numbers."""
    if left.type != right.type:
        left = left.cast(right.type)
    both = pa.chunked_array([*left.chunks, *right.chunks], right.type).combine_chunks()
    try:
        encoded = both.dictionary_encode()
    except pa.ArrowNotImplementedError:  # nested values
        encoded = pa.array([repr(value) for value in both.to_pylist()]).dictionary_encode()
    codes: Numbers = encoded.indices.fill_null(NULL).to_numpy().astype(np.int64)
    return codes - NULL


def _repeats(numbers: Numbers) -> bool:
    return len(np.unique(numbers)) < len(numbers)


KEY_GROUP = "__key_group"
NAMESPACE = "__namespace"
PART_ROWS = 500_000
PART_BYTES_MAX = 256 << 20
"""The limit for a part in memory, on each side."""

STATE_BYTES_MAX = 1 << 30
"""The limit for a state's files, on each side: every part reads its subtasks' files again."""

Keys = Mapping[tuple[str, str], Sequence[str]]
"""Maps operator and state to the columns that identify a row."""


@dataclass(frozen=True, slots=True)
class Point:
    location: str
    manifest: Manifest

    def handles(self, uid: str, state: str) -> list[StateHandle]:
        """Returns one handle of a broadcast state, because every subtask holds the same rows."""
        found = [
            handle
            for subtask in self.manifest.subtasks
            for operator in subtask.operators
            for handle in operator.states
            if (operator.uid, handle.state) == (uid, state)
        ]
        is_broadcast = bool(found) and found[0].redistribution is Redistribution.BROADCAST
        return found[:1] if is_broadcast else found

    def states(self) -> dict[tuple[str, str], None]:
        return {
            (operator.uid, handle.state): None
            for subtask in self.manifest.subtasks
            for operator in subtask.operators
            for handle in operator.states
        }


@dataclass(frozen=True, slots=True)
class Part:
    """All rows of the state if `groups` is None."""

    uid: str
    state: str
    groups: KeyGroupRange | None


def keys_of(flow_name: str, parameters: Mapping[str, str], code: LoadedCode | None = None) -> Keys:
    """Returns the keys that the pipeline declares now, or none if it can no longer be built."""
    try:
        declared = declared_states(find_flow(flow_name, code).build(parameters))
    except Rejected:
        return {}
    return {
        (uid, name): sorted(columns.fixed - {KEY_GROUP, NAMESPACE})
        for uid, states in declared.items()
        for name, columns in states.items()
        if columns.kind == "table"
    }


def parts_of(left: Point, right: Point) -> list[Part]:
    """Returns the parts in the order of the right point; the same points give the same parts."""
    states = right.states() | left.states()
    return [part for uid, state in states for part in _parts(left, right, uid, state)]


def difference_of(
    store: CheckpointStore, left: Point, right: Point, part: Part, keys: Keys
) -> StateDifference:
    """Raises CorruptSnapshot, naming a damaged file, or Retryable."""
    ours, theirs = left.handles(part.uid, part.state), right.handles(part.uid, part.state)
    counted = StateDifference(
        uid=part.uid,
        state=part.state,
        left_rows=sum(handle.rows for handle in ours),
        right_rows=sum(handle.rows for handle in theirs),
        changed=0,
    )
    if _digests(ours) == _digests(theirs):
        return replace(counted, note="Both points refer to the same files.")
    if max(sum(map(bytes_of, ours)), sum(map(bytes_of, theirs))) > STATE_BYTES_MAX:
        return replace(counted, problem=_too_large("in files", STATE_BYTES_MAX))
    try:
        tables = [
            _table(store, point.location, handles, part.groups)
            for point, handles in ((left, ours), (right, theirs))
        ]
    except _TooLarge:
        return replace(counted, problem=_too_large("in memory", PART_BYTES_MAX))
    known = [table for table in tables if table is not None]
    if not known:  # no subtask holds rows of these key groups
        return counted
    old, new = (known[0].schema.empty_table() if each is None else each for each in tables)
    return _compared(counted, old, new, keys.get((Uid(part.uid), part.state), ()))


class _TooLarge(Exception):
    """The part takes more memory than allowed."""


def _parts(left: Point, right: Point, uid: str, state: str) -> Iterator[Part]:
    ours, theirs = left.handles(uid, state), right.handles(uid, state)
    maximum = right.manifest.max_parallelism
    is_keyed = all(handle.redistribution is None for handle in (*ours, *theirs))
    rows = max(sum(handle.rows for handle in handles) for handles in (ours, theirs))
    count = min(maximum, max(1, -(-rows // PART_ROWS)))
    if count == 1 or not is_keyed or maximum != left.manifest.max_parallelism:
        yield Part(uid, state, None)
        return
    for index in range(count):
        yield Part(uid, state, range_of(index, count, maximum))


def _digests(handles: Sequence[StateHandle]) -> list[str]:
    return sorted(file.digest for handle in handles for file in handle.files)


def _too_large(where: str, bytes_max: int) -> str:
    return (
        f"It is too large to be compared here (more than {bytes_max:,} bytes {where}); compare both"
        " as Spark DataFrames, with pipelines.spark.read_state."
    )


def _table(
    store: CheckpointStore,
    location: str,
    handles: Sequence[StateHandle],
    groups: KeyGroupRange | None,
) -> pa.Table | None:
    """Returns None if there are no rows. Raises _TooLarge."""
    found: list[pa.RecordBatch] = []
    held = 0
    for handle in handles:
        if groups is not None and not handle.key_group_range.overlaps(groups):
            continue
        for batch in rows_of(store, location, handle, groups):
            chosen = batch if groups is None else batch.filter(_within(batch, groups))
            held += chosen.nbytes
            if held > PART_BYTES_MAX:
                raise _TooLarge
            found.append(chosen)
    return pa.Table.from_batches(found) if found else None


def _within(batch: pa.RecordBatch, groups: KeyGroupRange) -> pa.Array:
    column = batch.column(KEY_GROUP)
    return pc.and_(pc.greater_equal(column, groups.first), pc.less_equal(column, groups.last))


def _compared(
    counted: StateDifference, left: pa.Table, right: pa.Table, key: Sequence[str]
) -> StateDifference:
    """Names the columns that only one side has, and does not compare them."""
    shared = [name for name in right.column_names if name in left.column_names]
    columns = [name for name in shared if name != KEY_GROUP]
    only = sorted(set(left.column_names) ^ set(right.column_names))
    note = f"Not in both points, and so not compared: {', '.join(only)}." if only else ""
    found = by_key(left, right, key, columns) if key and set(key) <= set(columns) else None
    difference = found or by_row(left, right, columns)
    changed = difference.changed
    return replace(
        counted,
        columns=columns,
        key=list(key) if found else [],
        note=note,
        added=len(difference.added),
        removed=len(difference.removed),
        changed=None if changed is None else len(changed[0]),
        added_rows=_examples(right, columns, difference.added),
        removed_rows=_examples(left, columns, difference.removed),
        changed_rows=[
            ChangedRow(old, new)
            for old, new in zip(
                _examples(left, columns, changed[0]),
                _examples(right, columns, changed[1]),
                strict=True,
            )
        ]
        if changed
        else [],
    )


def _examples(table: pa.Table, columns: Sequence[str], rows: Numbers) -> list[list[Value]]:
    return shown_rows(table.select(columns).take(rows[:EXAMPLES_MAX]))


@dataclass(frozen=True, slots=True)
class Inspected:
    """How far the reading has come, in files and bytes; a `problem` ends it."""

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
