"""Poison records: the records of a source that fail an operator again and again, by position.

Values only. Which record is one is decided in `protocol.poison_records`; a record's values are in
the quarantine alone, never here, so that no journal and no message holds them.
"""

from enum import StrEnum

import msgspec

from pipelines.domain.ids import Uid
from pipelines.domain.origin import Origins, RecordOrigin

MOST_RECORDS = 1_000
"""That a run may set aside: every slot is told of all of them in one message."""
REPLAYED_PREFIX = "quarantine/"
"""Of the names of splits that are files of a quarantine, beside the splits of its source."""
ERROR_CHARS_MAX = 1_000
"""Of an error's text that is kept with a record, from its beginning."""
TRACE_CHARS_MAX = 7_000
"""Of its trace: the end says the most."""


class PoisonPolicy(StrEnum):
    """What follows when a record fails its operator twice."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


class PoisonRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record, by its place in the source, and what it does to whom."""

    source: Uid
    split: str
    offset: int
    operator: Uid
    error_type: str  # qualified name of the exception's class
    error: str
    trace: str

    @property
    def is_replayed(self) -> bool:
        """It was in quarantine before, and failed again."""
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
    """What an attempt is told: records that no operator is given, where to look for more, and which
    batches are handled one by one, so that a failure is that of one batch."""

    poison: list[PoisonRecord] = []
    ranges: list[IsolatedRange] = []
    apart: list[RecordOrigin] = []  # that failed when they were joined with others

    def concerns(self, source: Uid) -> bool:
        sources = {each.source for each in self.poison} | {each.source for each in self.ranges}
        return source in sources

    def keeps_apart(self, origins: Origins) -> bool:
        """Whether a batch with these origins is not to be joined with others."""
        return any(
            any(origin.meets(each) for each in self.apart)
            or any(_overlap(origin, each) for each in self.ranges)
            for origin in origins
        )


def _overlap(origin: RecordOrigin, isolated: IsolatedRange) -> bool:
    is_same_split = (origin.source, origin.split) == (isolated.source, isolated.split)
    begins_before_its_end = origin.first_offset <= isolated.last_offset
    return is_same_split and begins_before_its_end and origin.last_offset >= isolated.first_offset
