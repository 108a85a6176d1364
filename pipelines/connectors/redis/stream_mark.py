"""What a position in a Redis stream remembers of the stream, to know it again.

Redis gives a stream no identity: one that was deleted and made again has the same name, and may
have the same ids. So a position names an entry that was there, with a digest of what it held. Pure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.connectors.redis.ids import id_of, offset_of
from pipelines.connectors.split_progress import SplitProgress

DIGEST_BYTES = 8
PARTS = 4


@dataclass(frozen=True, slots=True)
class MarkedEntry:
    """The newest one that was read, or the first one to be read."""

    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class StreamMark:
    """`max_deleted`: of the stream, when the run began. `due`: how many entries are passed once all
    up to there are read; None where that is not ahead, or an earlier version wrote this."""

    max_deleted: int = 0
    due: int | None = None
    entry: MarkedEntry | None = None

    @classmethod
    def of(cls, version: str | None) -> "StreamMark":
        """From the version of a position; an earlier one has `max_deleted` alone."""
        max_deleted, due, entry_id, digest = (f"{version or 0}".split(":") + [""] * PARTS)[:PARTS]
        return cls(
            int(max_deleted),
            int(due) if due else None,
            MarkedEntry(offset_of(entry_id.encode()), digest) if entry_id else None,
        )

    def __str__(self) -> str:
        due = "" if self.due is None else str(self.due)
        entry = "" if self.entry is None else f"{id_of(self.entry.offset)}:{self.entry.digest}"
        return f"{self.max_deleted}:{due}:{entry}"

    def at(self, offset: int, fields: Sequence[bytes]) -> "StreamMark":
        return replace(self, entry=MarkedEntry(offset, digest_of(fields)))


def digest_of(fields: Sequence[bytes]) -> str:
    """Of an entry's fields and values; their lengths keep `a, bc` from `ab, c`."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        digest.update(b"%d:" % len(field))
        digest.update(field)
    return digest.hexdigest()


def marked_offset(split: SplitProgress) -> int | None:
    """Where to look for the entry of its mark; None: an earlier version wrote none."""
    entry = StreamMark.of(split.version).entry
    return None if entry is None else entry.offset
