"""The contents of a point, operator by operator, as values and text for people.

Listing them reads only the manifest. Rows become text; nothing stored is ever executed. The values
here also say how two points differ, state by state (counts, and a few example rows of each kind),
and how long a point can be restored, as far as that can be known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, StateHandle
from pipelines.points.stored_output import committable_count


@dataclass(frozen=True, slots=True)
class StateInside:
    """One state of one operator, over all subtasks."""

    state: str
    kind: str  # "table" or "batches", or a `Redistribution`
    rows: int
    bytes: int
    subtasks: int  # those that hold rows
    columns: dict[str, str]  # names to Arrow types, from the first subtask that holds rows


@dataclass(frozen=True, slots=True)
class OperatorInside:
    uid: str
    states: list[StateInside]
    is_source: bool  # it holds positions
    records_read: int | None  # since the first run, if it is a source
    pending_outputs: int  # those that a sink prepared and that are still to be committed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page begins: how many rows of that part (one subtask's rows) come before it."""

    part: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects the rows with this value in this column; `value` is text in the form of its type."""

    column: str
    value: str


@dataclass(frozen=True, slots=True)
class RowsQuestion:
    uid: str
    state: str
    begin: Place
    limit: int
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A `text` of None is null. `length` is that of the whole text, `text` may be its beginning."""

    text: str | None
    length: int


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class RowsPage:
    """`searched` of the state's `total` rows come before `next`, which is None on the last page."""

    columns: list[Column]
    rows: list[list[Value]]
    next: Place | None
    searched: int
    total: int


EXAMPLES_MAX = 10
"""The limit for each kind of difference in each state."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """The two rows of a key whose values differ, in the order of the columns."""

    left: list[Value]
    right: list[Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """The changes of a state from the left point to the right one.

    If `changed` is None, rows have no key: a row whose value changed counts as removed and added.
    `problem` says why rows were not compared; then only `left_rows` and `right_rows` are known.
    """

    uid: str
    state: str
    left_rows: int
    right_rows: int
    columns: list[str] = field(default_factory=list)  # of the example rows
    key: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changed: int | None = None
    added_rows: list[list[Value]] = field(default_factory=list)
    removed_rows: list[list[Value]] = field(default_factory=list)
    changed_rows: list[ChangedRow] = field(default_factory=list)
    note: str = ""
    problem: str = ""

    @property
    def is_same(self) -> bool:
        return not (self.added or self.removed or self.changed or self.problem)

    def plus(self, other: "StateDifference") -> "StateDifference":
        """Adds another part of the same state: its counts, and its rows while there is room."""
        changed = None if self.changed is None or other.changed is None else self.changed
        return replace(
            self,
            columns=self.columns or other.columns,
            key=(self.key or other.key) if changed is not None else [],
            added=self.added + other.added,
            removed=self.removed + other.removed,
            changed=None if changed is None else changed + (other.changed or 0),
            added_rows=(self.added_rows + other.added_rows)[:EXAMPLES_MAX],
            removed_rows=(self.removed_rows + other.removed_rows)[:EXAMPLES_MAX],
            changed_rows=(self.changed_rows + other.changed_rows)[:EXAMPLES_MAX],
            note=self.note or other.note,
            problem=self.problem or other.problem,
        )


@dataclass(frozen=True, slots=True)
class Limit:
    until_ms: int  # since the epoch
    reason: str  # one sentence


@dataclass(frozen=True, slots=True)
class ShelfLife:
    """`problems` says why the point cannot be restored now; the soonest of the `limits` is first.

    `unknown` says what could not be determined. Both use one sentence for each fact.
    """

    problems: list[str]
    limits: list[Limit]
    unknown: list[str]


def contents(manifest: Manifest) -> list[OperatorInside]:
    """Returns the operators in their order in the manifest."""
    found: dict[Uid, list[OperatorSnapshot]] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            found.setdefault(operator.uid, []).append(operator)
    return [_inside(uid, snapshots) for uid, snapshots in found.items()]


def handles_of(manifest: Manifest, uid: str, state: str) -> list[StateHandle]:
    """Returns the handles of all subtasks that hold rows, in order. Raises Rejected if none."""
    found = [
        handle
        for subtask in manifest.subtasks
        for operator in subtask.operators
        for handle in operator.states
        if (operator.uid, handle.state) == (uid, state)
    ]
    if not found:
        raise Rejected(f"The point holds no rows in a state {state!r} of an operator {uid!r}.")
    return found


def bytes_of(handle: StateHandle) -> int:
    return sum(file.length for file in handle.files)


def pending_commits(manifest: Manifest) -> dict[Uid, int]:
    counts: dict[Uid, int] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            count = committable_count(operator)
            if count:
                counts[operator.uid] = counts.get(operator.uid, 0) + count
    return counts


def counters_of(manifest: Manifest) -> dict[str, int]:
    """Returns the operators' counters at the point, summed over the subtasks."""
    totals: dict[str, int] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for name, value in operator.counters.items():
                key = f"{operator.uid}.{name}"
                totals[key] = totals.get(key, 0) + value
    return totals


def source_records_of(manifest: Manifest) -> int:
    return sum(
        operator.counters.get("records_read", 0)
        for subtask in manifest.subtasks
        for operator in subtask.operators
    )


def _inside(uid: Uid, snapshots: list[OperatorSnapshot]) -> OperatorInside:
    read = [each.counters["records_read"] for each in snapshots if "records_read" in each.counters]
    return OperatorInside(
        uid=uid,
        states=list(_states(snapshots)),
        is_source=any(each.positions is not None for each in snapshots),
        records_read=sum(read) if read else None,
        pending_outputs=sum(committable_count(each) for each in snapshots),
    )


def _states(snapshots: list[OperatorSnapshot]) -> Iterator[StateInside]:
    by_name: dict[str, list[StateHandle]] = {}
    for snapshot in snapshots:
        for handle in snapshot.states:
            by_name.setdefault(handle.state, []).append(handle)
    for name, handles in by_name.items():
        yield StateInside(
            state=name,
            kind=handles[0].kind,
            rows=sum(handle.rows for handle in handles),
            bytes=sum(map(bytes_of, handles)),
            subtasks=len(handles),
            columns=handles[0].schema,
        )


VALUE_LENGTH_MAX = 200


def shown_rows(batch: pa.RecordBatch | pa.Table) -> list[list[Value]]:
    columns = [texts_of(column) for column in batch.columns]
    return [[value_of(column[row]) for column in columns] for row in range(batch.num_rows)]


def texts_of(column: pa.Array) -> list[str | None]:
    """Writes binary values in hexadecimal, others as Arrow does, or as Python does if it cannot."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return texts


def value_of(text: str | None) -> Value:
    return Value(None, 0) if text is None else Value(text[:VALUE_LENGTH_MAX], len(text))
