"""How two recovery points differ, state by state: counts, and a few example rows of each kind."""

from dataclasses import dataclass, field, replace

from pipelines.domain.point_contents import Value

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
