"""Poison records: records of a source that fail an operator again and again, by position.

This module has only the values. `protocol.repeated_failures` decides which records are poison. A
record's contents are only in the quarantine, never here, so that no journal and no message holds
them.
"""

from enum import StrEnum

import msgspec

from pipelines.domain.ids import Uid
from pipelines.domain.origins import Origins, RecordOrigin

MOST_RECORDS = 1_000
"""The most that a run may set aside: one message tells every slot of all of them."""
REPLAYED_PREFIX = "quarantine/"
"""Begins the names of splits that are quarantine files rather than the source's own splits."""
ERROR_CHARS_MAX = 1_000
"""How much of an error's text is kept with a record, from its beginning."""
TRACE_CHARS_MAX = 7_000
"""How much of its trace is kept, from its end, which says the most."""


class PoisonPolicy(StrEnum):
    """The response to a record that fails its operator again and again."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


class PoisonRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record, by its place in the source, with the operator that it fails and the error."""

    source: Uid
    split: str
    offset: int
    operator: Uid
    error_type: str  # qualified name of the exception's class
    error: str
    trace: str

    @property
    def is_replayed(self) -> bool:
        """True if it was in quarantine before, and failed again."""
        return self.split.startswith(REPLAYED_PREFIX)

    @property
    def position(self) -> tuple[Uid, str, int]:
        return self.source, self.split, self.offset

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.source}, split {self.split}"


class IsolatedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Offsets of a split, both included, that are read `step` at a time to find a poison record."""

    source: Uid
    split: str
    first_offset: int
    last_offset: int
    step: int

    def __str__(self) -> str:
        offsets = f"offsets {self.first_offset} to {self.last_offset}"
        return f"{offsets} of {self.source}, split {self.split}"


class Isolation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instructions for an attempt about poison records.

    They say which records no operator gets, where to look for more, and which batches to handle one
    by one, so that a failure belongs to one batch.
    """

    poison: list[PoisonRecord] = []
    ranges: list[IsolatedRange] = []
    apart: list[RecordOrigin] = []  # failed when they were joined with others

    def concerns(self, source: Uid) -> bool:
        sources = {each.source for each in self.poison} | {each.source for each in self.ranges}
        return source in sources

    def keeps_apart(self, origins: Origins) -> bool:
        """True if a batch with these origins must not be joined with others."""
        return any(
            any(origin.meets(each) for each in self.apart)
            or any(_overlap(origin, each) for each in self.ranges)
            for origin in origins
        )


def _overlap(origin: RecordOrigin, isolated: IsolatedRange) -> bool:
    is_same_split = (origin.source, origin.split) == (isolated.source, isolated.split)
    begins_before_its_end = origin.first_offset <= isolated.last_offset
    return is_same_split and begins_before_its_end and origin.last_offset >= isolated.first_offset
