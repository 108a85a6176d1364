"""The names and positions with which the sources of a run begin, found once for all slots.

The driver looks once and hands the result to every slot. If each slot listed a directory itself and
a file appeared in between, the slots would number the splits differently: a file would be read
twice or never. A log that is read from its newest record on would begin elsewhere in each slot, and
again elsewhere after a failure before the first checkpoint.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.ids import Uid

Listings = Mapping[str, Sequence[str]]
"""The names in each directory, by directory and suffix."""

_LISTED: ContextVar[dict[str, list[str]] | None] = ContextVar("listed", default=None)


class Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`splits`: for each source, the splits that existed and where to begin with each."""

    directories: dict[str, list[str]] = {}
    splits: dict[Uid, list[SplitProgress]] = {}

    def packed(self) -> bytes:
        """Compressed, because file names resemble each other and there may be a million of them."""
        return zlib.compress(msgspec.json.encode(self))

    @classmethod
    def unpacked(cls, packed: bytes) -> "Beginning":
        return msgspec.json.decode(zlib.decompress(packed), type=cls) if packed else cls()


@contextmanager
def listing_once(known: Listings) -> Iterator[dict[str, list[str]]]:
    """Within this context a directory has the names in `known`, or else those of its first listing.

    Yields all listings, to be passed as `known` the next time.
    """
    listed = {place: list(names) for place, names in known.items()}
    token = _LISTED.set(listed)
    try:
        yield listed
    finally:
        _LISTED.reset(token)


def listed_once(directory: str, suffix: str, look: Callable[[], list[str]]) -> list[str]:
    """The names in `directory`, which is spelled as the author spelled it; see `listing_once`."""
    listed = _LISTED.get()
    if listed is None:
        return look()
    place = f"{directory}/*{suffix}"
    if place not in listed:
        listed[place] = look()
    return listed[place]
