"""The losses of a stream: it reports exactly the unread entries, whatever happened before."""

import random

import numpy as np
import pytest

from pipelines.connectors.redis.stream_entries import (
    MarkedEntry,
    StreamExtent,
    StreamMark,
    digest_of,
    marked_offset,
    passed_by,
    pending_of,
    range_gone,
)
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected


class FakeStream:
    """Counts as a server does. Offsets are small numbers here."""

    def __init__(self, first: int = 1, maker: str = "old", step: int = 1) -> None:
        self.entries: dict[int, list[bytes]] = {}
        self.added = 0
        self.last = first - step
        self.step = step
        self.max_deleted = 0
        self.maker = maker

    def add(self, count: int) -> None:
        for _ in range(count):
            self.added += 1
            self.last += self.step
            self.entries[self.last] = [b"maker", self.maker.encode(), b"n", b"%d" % self.added]

    def delete(self, offset: int) -> None:
        del self.entries[offset]
        self.max_deleted = max(self.max_deleted, offset)

    def trim(self, count: int) -> list[int]:
        trimmed = list(self.entries)[:count]
        for offset in trimmed:
            del self.entries[offset]
        return trimmed

    def extent(self) -> StreamExtent:
        marks = [MarkedEntry(offset, digest_of(held)) for offset, held in self.entries.items()]
        first, last = (marks[0], marks[-1]) if marks else (None, None)
        return StreamExtent(
            added=self.added,
            length=len(self.entries),
            last=self.last,
            max_deleted=self.max_deleted,
            first=first.offset if first else None,
            first_entry=first,
            last_entry=last,
        )

    def begin(self, *, is_newest: bool = False) -> SplitProgress:
        extent = self.extent()
        if is_newest:
            return extent.from_newest("s")
        ahead = sum(offset <= self.max_deleted for offset in self.entries)
        return extent.from_oldest("s", None, ahead if extent.has_hole_ahead else None)

    def read(self, split: SplitProgress, count: int) -> SplitProgress:
        """Raises Rejected as a reader does."""
        marked = marked_offset(split)
        held = None if marked is None else self.entries.get(marked)
        oldest = self.extent().oldest(split, held)
        if oldest > split.offset:
            raise Rejected(range_gone(split, oldest, self.extent()))
        offsets = [offset for offset in self.entries if offset >= split.offset][:count]
        last = self.entries[offsets[-1]] if offsets else []
        return passed_by(split, np.array(offsets, np.int64), last, is_all=len(offsets) < count)


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("is_newest", [True, False])
def test_trimmed_entries_count_as_lost_exactly_if_they_were_unread(
    seed: int, is_newest: bool
) -> None:
    chance, stream = random.Random(seed), FakeStream()
    stream.add(chance.randint(1, 12))
    for offset in chance.sample(list(stream.entries), chance.randint(0, len(stream.entries))):
        stream.delete(offset)
    stream.trim(chance.randint(0, 3))
    split = stream.begin(is_newest=is_newest)

    for _ in range(12):
        stream.add(chance.randint(0, 3))
        split = stream.read(split, chance.randint(1, 4))
        trimmed = stream.trim(chance.choice([0, 0, 1, 3]))
        lost = sum(offset >= split.offset for offset in trimmed)

        if lost:
            assert stream.extent().lost_before(split) == lost
            with pytest.raises(Rejected, match=rf": {lost} entries, \d+-\d+ to \d+-\d+, are gone"):
                stream.read(split, 1)
            return
        stream.read(split, 1)


@pytest.mark.parametrize("seed", range(400))
def test_lost_unread_entries_are_always_reported_and_read_ones_never(seed: int) -> None:
    """Entries disappear: trimmed, or deleted anywhere, before and after the run begins."""
    chance, stream = random.Random(seed), FakeStream()
    stream.add(chance.randint(0, 12))
    for offset in chance.sample(list(stream.entries), chance.randint(0, len(stream.entries) // 2)):
        stream.delete(offset)
    split = stream.begin(is_newest=chance.random() < 0.2)
    unread_gone = False

    for _ in range(chance.randint(1, 20)):
        stream.add(chance.randint(0, 3))
        gone = stream.trim(chance.choice([0, 0, 0, 1, 2]) if chance.random() < 0.3 else 0)
        for offset in chance.sample(list(stream.entries), min(len(stream.entries), 1)):
            if offset < split.offset or chance.random() < 0.15:
                stream.delete(offset)
                gone.append(offset)
        unread_gone |= any(offset >= split.offset for offset in gone)
        try:
            split = stream.read(split, chance.randint(1, 4))
        except Rejected:
            assert unread_gone
            return
    if unread_gone:
        with pytest.raises(Rejected):
            stream.read(split, 1_000)
    else:
        stream.read(split, 1_000)


@pytest.mark.parametrize("seed", range(1_000))
def test_a_recreated_stream_is_refused_however_long_it_is(seed: int) -> None:
    chance, stream = random.Random(seed), FakeStream()
    stream.add(chance.randint(1, 12))
    for offset in list(stream.entries)[: chance.choice([0, 0, 1, 2])]:
        stream.delete(offset)
    stream.trim(chance.choice([0, 0, 1, 3]))
    split = stream.begin(is_newest=chance.random() < 0.3)
    for _ in range(chance.randint(0, 3)):
        split = stream.read(split, chance.randint(1, 4))
        stream.add(chance.randint(0, 3))
    if marked_offset(split) is None:
        return  # it was empty, so nothing identifies it

    first = chance.choice([1, 1, stream.last + 1, stream.last + 100])
    again = FakeStream(first, "new", step=chance.choice([1, 1, 2, 3]))
    again.add(chance.randint(0, 40))
    for _ in range(chance.choice([0, 0, 1, 2])):
        again.trim(chance.randint(0, 3))
    if (
        again.extent().removed == split.passed
        and again.extent().from_oldest("s", None, None).offset >= split.offset
    ):
        return  # by chance it has lost as many entries as were read from the old one

    with pytest.raises(Rejected):
        again.read(split, 1)


@pytest.mark.parametrize(
    ("extent", "version"),
    [
        (StreamExtent(added=40, length=40, last=40, max_deleted=0, first=1), "8"),
        (StreamExtent(added=40, length=30, last=60, max_deleted=0, first=7), "0"),
        (StreamExtent(added=4, length=4, last=40, max_deleted=0, first=1), "0"),
        (StreamExtent(added=40, length=40, last=8, max_deleted=0, first=1), "0"),
        (StreamExtent(added=40, length=38, last=60, max_deleted=0, first=12), "0"),
    ],
)
def test_impossible_counts_and_ids_identify_another_stream(
    extent: StreamExtent, version: str
) -> None:
    """The position is from an earlier version, which names no entry."""
    with pytest.raises(Rejected, match="is another one"):
        extent.oldest(SplitProgress("s", 10, 5, None, version), None)


@pytest.mark.parametrize("version", ["8", "8:9:", "8:9:0-3:ab"])
def test_a_deletion_below_an_older_hole_is_noticed_if_no_read_entry_remains(
    version: str,
) -> None:
    stream = FakeStream()
    stream.add(10)
    stream.delete(8)
    stream.trim(4)
    stream.read(SplitProgress("s", 5, 5, None, version), 1)
    stream.delete(6)

    with pytest.raises(Rejected, match="entries 0-5 to 0-8 are gone"):
        stream.read(SplitProgress("s", 5, 5, None, version), 1)


def test_deletions_below_an_older_hole_are_reported_when_reading_reaches_them() -> None:
    stream = FakeStream()
    stream.add(10)
    stream.delete(8)
    split = stream.read(stream.begin(), 4)
    stream.delete(1)
    stream.delete(6)

    split = stream.read(split, 2)
    with pytest.raises(Rejected, match="s: 1 of the entries up to 0-8 that were there"):
        stream.read(split, 2)


def test_a_position_of_an_earlier_version_can_be_continued() -> None:
    """Such a position has neither a mark nor a count of the entries ahead."""
    stream = FakeStream()
    stream.add(10)
    stream.delete(8)
    stream.trim(2)

    split = stream.read(SplitProgress("s", 3, 3, None, "8"), 4)

    assert (split.offset, split.passed) == (7, 7)
    assert StreamMark.of(split.version).entry == MarkedEntry(6, digest_of(stream.entries[6]))
    with pytest.raises(Rejected, match="is another one"):
        stream.read(SplitProgress("s", 3, 4, None, "8"), 4)


@pytest.mark.parametrize(
    ("passed", "end_offset", "given", "pending"),
    [
        (2, None, 3, 5),
        (2, None, 0, 6),  # two of the added entries were deleted since
        (9, None, 1, 0),
        (2, 50, 3, None),  # bounded
    ],
)
def test_the_entries_left_to_read_are_counted(
    passed: int, end_offset: int | None, given: int, pending: int | None
) -> None:
    extent = StreamExtent(added=10, length=8 if given else 6, last=10, max_deleted=0, first=1)

    assert pending_of(extent, SplitProgress("s", 3, passed, end_offset), given) == pending
    assert pending_of(None, SplitProgress("s", 0, 0, end_offset), given) == 0
