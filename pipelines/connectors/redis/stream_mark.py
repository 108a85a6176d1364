"""What a position in a Redis stream remembers, to recognize the stream later.

Redis gives a stream no identity: one that was deleted and created again has the same name, and may
have the same ids. So a position names an entry of the stream, with a digest of its contents. Pure.
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
    """The newest entry that was read, or the first one to read."""

    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class StreamMark:
    """`max_deleted`: the stream's, when the run began. `due`: how many entries are passed once all
    up to there are read; None if it is not ahead, or if an earlier version wrote this."""

    max_deleted: int = 0
    due: int | None = None
    entry: MarkedEntry | None = None

    @classmethod
    def of(cls, version: str | None) -> "StreamMark":
        """From a position's `version`; an earlier release stored `max_deleted` alone."""
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
    """Digests an entry's fields and values; their lengths distinguish `a, bc` from `ab, c`."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        digest.update(b"%d:" % len(field))
        digest.update(field)
    return digest.hexdigest()


def marked_offset(split: SplitProgress) -> int | None:
    """The offset of the mark's entry; None: an earlier version stored none."""
    entry = StreamMark.of(split.version).entry
    return None if entry is None else entry.offset
