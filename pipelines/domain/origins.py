"""Where records and failures come from: ranges of splits, and the timer that was due.

Reports and commands name origins too, so this module does not load Arrow.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from pipelines.domain.ids import Uid


class Firing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The timer or other work that was due when an operator failed, as the end of a sentence.

    For example: "in a timer of key 7 at time 1970-01-01T00:00:05.000Z". With `is_one_timer`, the
    text names one timer, which fires again after a restart, no matter which batch then advances
    time.
    """

    text: str
    is_one_timer: bool = False

    def __str__(self) -> str:
        return self.text


class RecordOrigin(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A range of one split as one source subtask read it; both offsets are included.

    With `is_moment`, it only gives the time. What fired then was made from other records.
    """

    source: Uid
    subtask: int
    split: str
    first_offset: int
    last_offset: int
    is_moment: bool = False

    def __str__(self) -> str:
        offsets = f"offset {self.first_offset}"
        if self.last_offset != self.first_offset:
            offsets = f"offsets {self.first_offset} to {self.last_offset}"
        return f"{self.source}[{self.subtask}], split {self.split}, {offsets}"

    @property
    def records(self) -> int:
        return self.last_offset - self.first_offset + 1

    def meets(self, other: "RecordOrigin") -> bool:
        """True if a record belongs to both. Its reader does not matter, because splits move."""
        same = (self.source, self.split) == (other.source, other.split)
        return same and self._first_shared(other) <= self._last_shared(other)

    def shared_with(self, other: "RecordOrigin") -> "RecordOrigin":
        """Returns the records of both. Call it only for origins that meet."""
        return msgspec.structs.replace(
            self, first_offset=self._first_shared(other), last_offset=self._last_shared(other)
        )

    def at_row(self, row: int) -> "RecordOrigin":
        """Returns one record of a batch that holds exactly the records of this range, in order."""
        return self.at_offset(self.first_offset + row)

    def at_offset(self, offset: int) -> "RecordOrigin":
        return msgspec.structs.replace(self, first_offset=offset, last_offset=offset)

    def as_moment(self) -> "RecordOrigin":
        return self if self.is_moment else msgspec.structs.replace(self, is_moment=True)

    def joined(self, other: "RecordOrigin") -> "RecordOrigin":
        """Returns the range from the first record of either to the last; both are of one split."""
        return msgspec.structs.replace(
            self,
            first_offset=min(self.first_offset, other.first_offset),
            last_offset=max(self.last_offset, other.last_offset),
        )

    def _first_shared(self, other: "RecordOrigin") -> int:
        return max(self.first_offset, other.first_offset)

    def _last_shared(self, other: "RecordOrigin") -> int:
        return min(self.last_offset, other.last_offset)


Origins: TypeAlias = tuple[RecordOrigin, ...]
"""The origins of one batch, by split; empty means unknown."""

Part: TypeAlias = tuple[Origins, int]
"""A batch that was joined with others: where its rows came from, and how many there are."""

MOST_ORIGINS = 64
"""The most per batch. Each is compared, sent and decoded: batches of more are not joined."""


def gathered(all_origins: Iterable[Origins]) -> Origins:
    """Returns one range for each split of joined batches, including what lies in between."""
    by_split: dict[tuple[Uid, int, str, bool], RecordOrigin] = {}
    for origin in (origin for origins in all_origins for origin in origins):
        split = (origin.source, origin.subtask, origin.split, origin.is_moment)
        known = by_split.get(split)
        by_split[split] = origin if known is None else known.joined(origin)
    return tuple(by_split.values())
