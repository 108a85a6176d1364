"""What a Redis stream still holds, and whether anything was lost that a reader had not read.

A stream says how many entries were ever added, how many there are, which is the first, and which
one was deleted by its id. Trimming does not move `max-deleted-entry-id` (seen with Valkey 9.1), so
what was trimmed is counted: as long as an entry at or before the position is there, nothing behind
it was trimmed; else as many may be missing as were when the run began, wherever they had been, and
as have been read since. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.connectors.redis.ids import id_of, offset_of
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """Of one moment. `first` None: the stream is empty."""

    added: int
    length: int
    last: int  # the newest id ever given
    max_deleted: int
    first: int | None

    @classmethod
    def of(cls, answer: Mapping[bytes, object]) -> "StreamExtent":
        """From the answer of XINFO STREAM. Raises Rejected: the server is older than 7.0."""
        if b"entries-added" not in answer:
            raise Rejected("The Redis server does not count what was trimmed; use 7.0 or newer.")
        first = answer[b"first-entry"]
        return cls(
            added=_number(answer[b"entries-added"]),
            length=_number(answer[b"length"]),
            last=offset_of(_bytes(answer[b"last-generated-id"])),
            max_deleted=offset_of(_bytes(answer[b"max-deleted-entry-id"])),
            first=offset_of(_bytes(first[0])) if isinstance(first, list) else None,
        )

    @property
    def removed(self) -> int:
        return self.added - self.length

    def from_oldest(self, name: str, end_offset: int | None) -> SplitProgress:
        """To begin with the first entry. What was deleted before is nobody's loss."""
        begin = self.last + 1 if self.first is None else self.first
        # With those deleted between entries that are there: `removed` will always hold them too.
        return SplitProgress(name, begin, self.removed, end_offset, str(self.max_deleted))

    def from_newest(self, name: str) -> SplitProgress:
        return SplitProgress(name, self.last + 1, self.added, None, str(self.max_deleted))

    def oldest(self, split: SplitProgress) -> int:
        """As `GrowingSource.oldest`. Raises Rejected: this is another stream of that name."""
        if self.last + 1 < split.offset or self.added < split.passed:
            raise Rejected(
                f"The stream {split.name} is another one than that which was read: it has not come"
                " to where this run has been. The entries that were not read are gone."
            )
        if self.max_deleted >= split.offset and self.max_deleted > int(split.version or 0):
            return max(self.max_deleted + 1, self.first or 0)
        begin = self.last + 1 if self.first is None else self.first
        if begin > split.offset and self.removed > split.passed:
            return begin
        return 0


def oldest_of(extent: StreamExtent | None, split: SplitProgress) -> int:
    """`extent` None: there is no stream. Raises Rejected when there was one."""
    if extent is not None:
        return extent.oldest(split)
    if split.offset:
        raise Rejected(f"The stream {split.name} and all that was not read of it is gone.")
    return 0


def pending_of(extent: StreamExtent | None, split: SplitProgress, given: int) -> int | None:
    """What is left behind the next `given` entries. None: of a bounded split nobody knows how much
    of it lies before its end."""
    if extent is None:
        return 0
    if split.end_offset is not None:
        return None
    return max(0, min(extent.added - split.passed, extent.length) - given)


def range_gone(split: SplitProgress, oldest: int) -> str:
    return (
        f"The stream {split.name}: entries {id_of(split.offset)} to {id_of(oldest - 1)} are gone"
        " (trimmed or deleted) and were not read."
    )


def _number(value: object) -> int:
    return int(str(value))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
