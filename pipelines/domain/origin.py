"""Where the records of a batch came from: which records a failure was working on.

Travels beside every batch, so it is one small value per batch and never one per record. What is
computed from a batch keeps the origin of that batch: after an exchange or a window it is the
input batch that was being processed.
"""

import msgspec

from pipelines.domain.ids import Uid


class RecordOrigin(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A range of one split as one source subtask read it; both offsets belong to it.

    `is_moment`: it only tells when. What fired at that time was made of other records.
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
        """Whether a record belongs to both. Who read it does not matter: splits move."""
        same = (self.source, self.split) == (other.source, other.split)
        return same and self._first_shared(other) <= self._last_shared(other)

    def shared_with(self, other: "RecordOrigin") -> "RecordOrigin":
        """The records of both; only for origins that meet."""
        return msgspec.structs.replace(
            self, first_offset=self._first_shared(other), last_offset=self._last_shared(other)
        )

    def at_row(self, row: int) -> "RecordOrigin":
        """One record of a batch that holds exactly the records of this range, in order."""
        return self.at_offset(self.first_offset + row)

    def at_offset(self, offset: int) -> "RecordOrigin":
        return msgspec.structs.replace(self, first_offset=offset, last_offset=offset)

    def as_moment(self) -> "RecordOrigin":
        return self if self.is_moment else msgspec.structs.replace(self, is_moment=True)

    def _first_shared(self, other: "RecordOrigin") -> int:
        return max(self.first_offset, other.first_offset)

    def _last_shared(self, other: "RecordOrigin") -> int:
        return min(self.last_offset, other.last_offset)
