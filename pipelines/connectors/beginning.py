"""What the sources of a run were given when it began: found once, by the driver, for all slots.

A source that lists a directory would be another one in each slot if a file appeared in between:
splits are numbered in the order of the listing, so that a file would be read twice or never. A log
that is read from its newest record on would begin somewhere else in each slot, and again somewhere
else after a failure that comes before the first checkpoint.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.ids import Uid

Listings = Mapping[str, Sequence[str]]
"""By directory and suffix, the names in it."""

_LISTED: ContextVar[dict[str, list[str]] | None] = ContextVar("listed", default=None)


class Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`splits`: by source, those that there were, and where to begin with each."""

    directories: dict[str, list[str]] = {}
    splits: dict[Uid, list[SplitProgress]] = {}

    def packed(self) -> bytes:
        """Names of files resemble each other, and there may be a million."""
        return zlib.compress(msgspec.json.encode(self))

    @classmethod
    def unpacked(cls, packed: bytes) -> "Beginning":
        return msgspec.json.decode(zlib.decompress(packed), type=cls) if packed else cls()


@contextmanager
def listing_once(known: Listings) -> Iterator[dict[str, list[str]]]:
    """Within, a directory is listed as it is `known`, or else as it is when it is looked at first.

    Gives what has been listed, to be known the next time.
    """
    listed = {place: list(names) for place, names in known.items()}
    token = _LISTED.set(listed)
    try:
        yield listed
    finally:
        _LISTED.reset(token)


def listed_once(directory: str, suffix: str, look: Callable[[], list[str]]) -> list[str]:
    """The names in a directory, as the author spells it; see `listing_once`."""
    listed = _LISTED.get()
    if listed is None:
        return look()
    place = f"{directory}/*{suffix}"
    if place not in listed:
        listed[place] = look()
    return listed[place]
