"""What differs between two recovery points, state by state: counts, and a few rows of each sort."""

from dataclasses import dataclass, field, replace

from pipelines.domain.point_contents import Value

EXAMPLES_MAX = 10
"""Of each sort of difference in each state."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """The same key with other values, in the order of the columns."""

    left: list[Value]
    right: list[Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """From the left point to the right one. `changed` None: rows have no key, so that one whose
    value changed counts as one that is gone and one that is new.

    `problem`: why rows were not compared; then only `left_rows` and `right_rows` are known.
    """

    uid: str
    state: str
    left_rows: int
    right_rows: int
    columns: list[str] = field(default_factory=list)  # of the rows below
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
        """With another part of the same state: its counts, and its rows as far as there is room."""
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
