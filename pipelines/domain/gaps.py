"""A range of input that no longer exists, and that a person may accept as lost. Pure.

A person accepts a gap by its exact text. If more has vanished by the time that a run starts, the
text does not fit any more, and the run is refused: no one has accepted that loss.
"""

import re
from dataclasses import dataclass

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid

_TEXT = re.compile(r"(\S+) (.*\S) ([0-9]{1,19})-([0-9]{1,19})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The offsets of one split that are gone and were not read, from `first` to `last`."""

    source: Uid
    split: str
    first: int
    last: int
    records: int  # the most that were in it

    @property
    def text(self) -> str:
        """The text by which a person accepts it."""
        return f"{self.source} {self.split} {self.first}-{self.last}"

    @property
    def lost(self) -> str:
        """A clause that describes the loss."""
        return (
            f"up to {self.records:,} record{'' if self.records == 1 else 's'} of {self.source!r},"
            f" split {self.split}, offsets {self.first} to {self.last}"
        )


def checked_gaps(given: list[str]) -> list[str]:
    """Raises Rejected naming a text that cannot be the text of a gap."""
    for text in given:
        match = _TEXT.fullmatch(text)
        if match is None or int(match[3]) > int(match[4]):
            raise Rejected(
                f"{text!r} names no gap; write SOURCE SPLIT FIRST-LAST, as the preflight does."
            )
    return sorted(set(given))
