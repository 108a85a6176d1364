"""The figures of each subtask in one checkpoint, and the order of subtasks by them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.text import slugify

from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.distribution import Distribution
from ftdash.checkpoints.parts import SubtaskSpread
from ftdash.formats import duration, size


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    of: Callable[[SubtaskTimeline], float]
    spread: Callable[[SubtaskSpread], Distribution]
    write: Callable[[float], str]

    @property
    def key(self) -> str:
        """Its name in addresses."""
        return slugify(self.label)


COLUMNS = [
    Column(
        "End to end duration",
        lambda each: each.acknowledged_ms,
        lambda s: s.acknowledged_ms,
        duration,
    ),
    Column("Start delay", lambda each: each.start_delay_ms, lambda s: s.start_delay_ms, duration),
    Column("Alignment", lambda each: each.alignment_ms, lambda s: s.alignment_ms, duration),
    Column("Sync", lambda each: each.sync_ms, lambda s: s.sync_ms, duration),
    Column("Async", lambda each: each.async_ms, lambda s: s.async_ms, duration),
    Column("Uploaded", lambda each: each.uploaded_bytes, lambda s: s.uploaded_bytes, size),
    Column("Full size", lambda each: each.state_bytes, lambda s: s.state_bytes, size),
    Column("Held back", lambda each: each.buffered_bytes, lambda s: s.buffered_bytes, size),
    Column("In flight, kept", lambda each: each.persisted_bytes, lambda s: s.persisted_bytes, size),
]


@dataclass(frozen=True, slots=True)
class Heading:
    """`choice` is the order that choosing it leads to; None: by index."""

    label: str
    key: str
    direction: str  # in ARIA's words; empty: they are not ordered by it
    choice: str | None


@dataclass(frozen=True, slots=True)
class SubtaskOrder:
    """By index, or by a figure."""

    column: Column | None = None
    is_descending: bool = False

    @classmethod
    def parse(cls, text: str) -> "SubtaskOrder":
        """`alignment`, or `-alignment` for the greatest first. An unknown name means no order."""
        found = [each for each in COLUMNS if each.key == text.removeprefix("-")]
        return cls(found[0], text.startswith("-")) if found else cls()

    def headings(self) -> list[Heading]:
        """Choosing one leads to the greatest first, then to the least, then back to no order."""
        return [self._heading(column) for column in COLUMNS]

    def indices(self, subtasks: Mapping[int, SubtaskTimeline], count: int) -> list[int]:
        """Of all subtasks. Those that have not acknowledged have no figures, and come last."""
        column = self.column
        if column is None:
            return list(range(count))
        known = [index for index in range(count) if index in subtasks]
        known.sort(key=lambda index: column.of(subtasks[index]), reverse=self.is_descending)
        return [*known, *(index for index in range(count) if index not in subtasks)]

    def _heading(self, column: Column) -> Heading:
        if column is not self.column:
            return Heading(column.label, column.key, "", f"-{column.key}")
        if self.is_descending:
            return Heading(column.label, column.key, "descending", column.key)
        return Heading(column.label, column.key, "ascending", None)
