"""The contents of a recovery point, for people: its operators, and rows as text.

How two recovery points differ, state by state: counts, and a few example rows of each kind.

How long a recovery point can be restored, as far as that can be known.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class StateInside:
    """One state of one operator, over all subtasks."""

    state: str
    kind: str  # "table" or "batches", or a `Redistribution`
    rows: int
    bytes: int
    subtasks: int  # those that hold rows
    columns: dict[str, str]  # to Arrow type names, those of the first subtask that holds rows


@dataclass(frozen=True, slots=True)
class OperatorInside:
    uid: str
    states: list[StateInside]
    is_source: bool  # it holds positions
    records_read: int | None  # by a source, since the first run
    pending_outputs: int  # prepared by a sink, to be committed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page begins: how many rows of that part (one subtask's rows) come before it."""

    part: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Only rows with this value in that column; `value` is written as the column's type is."""

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
    """None: null. `length` is that of the whole text; `text` may be only its beginning."""

    text: str | None
    length: int


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class RowsPage:
    """`searched` rows of the state's `total` lie before `next`; None: there are no more."""

    columns: list[Column]
    rows: list[list[Value]]
    next: Place | None
    searched: int
    total: int


EXAMPLES_MAX = 10
"""Per kind of difference and state."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A key whose values differ, in the order of the columns."""

    left: list[Value]
    right: list[Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """From the left point to the right one. `changed` None: rows have no key, so a row whose value
    changed counts as one removed and one added.

    `problem`: why rows were not compared; then only `left_rows` and `right_rows` are known.
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
    """`problems`: why it cannot be restored now, one sentence each. `limits`: soonest first.

    `unknown`: what could not be determined, one sentence each.
    """

    problems: list[str]
    limits: list[Limit]
    unknown: list[str]
