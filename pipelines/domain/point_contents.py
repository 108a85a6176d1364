"""The contents of a recovery point, for people: its operators, and rows as text."""

from dataclasses import dataclass


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
