"""What a stream says of its losses: exactly those that were not read, whatever went before."""

import random

import pytest

from pipelines.connectors.redis.stream_extent import StreamExtent, pending_of
from pipelines.connectors.split_progress import SplitProgress


class FakeStream:
    """Counts as a server does. Ids are numbers here."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.added = 0
        self.max_deleted = 0

    def add(self, count: int) -> None:
        self.ids += range(self.added + 1, self.added + count + 1)
        self.added += count

    def delete(self, entry_id: int) -> None:
        self.ids.remove(entry_id)
        self.max_deleted = max(self.max_deleted, entry_id)

    def trim(self, count: int) -> list[int]:
        trimmed, self.ids = self.ids[:count], self.ids[count:]
        return trimmed

    def extent(self) -> StreamExtent:
        first = self.ids[0] if self.ids else None
        return StreamExtent(self.added, len(self.ids), self.added, self.max_deleted, first)


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("is_newest", [True, False])
def test_what_is_trimmed_is_gone_exactly_where_it_was_not_read(seed: int, is_newest: bool) -> None:
    chance, stream = random.Random(seed), FakeStream()
    stream.add(chance.randint(1, 12))
    for entry_id in chance.sample(stream.ids, chance.randint(0, len(stream.ids))):
        stream.delete(entry_id)
    stream.trim(chance.randint(0, 3))
    extent = stream.extent()
    split = extent.from_newest("s") if is_newest else extent.from_oldest("s", None)

    for _ in range(12):
        stream.add(chance.randint(0, 3))
        split = read(stream, split, chance.randint(0, 4))
        trimmed = stream.trim(chance.choice([0, 0, 1, 3]))
        is_lost = any(entry_id >= split.offset for entry_id in trimmed)

        assert (stream.extent().oldest(split) > split.offset) == is_lost
        if is_lost:
            break


def read(stream: FakeStream, split: SplitProgress, count: int) -> SplitProgress:
    entries = [entry_id for entry_id in stream.ids if entry_id >= split.offset][:count]
    if not entries:
        return split
    passed = split.passed + len(entries)
    return SplitProgress("s", entries[-1] + 1, passed, None, split.version)


@pytest.mark.parametrize(
    ("passed", "end_offset", "given", "pending"),
    [
        (2, None, 3, 5),
        (2, None, 0, 6),  # two of those that were added are deleted since
        (9, None, 1, 0),
        (2, 50, 3, None),  # bounded
    ],
)
def test_what_is_left_is_counted(
    passed: int, end_offset: int | None, given: int, pending: int | None
) -> None:
    extent = StreamExtent(added=10, length=8 if given else 6, last=10, max_deleted=0, first=1)

    assert pending_of(extent, SplitProgress("s", 3, passed, end_offset), given) == pending
    assert pending_of(None, SplitProgress("s", 0, 0, end_offset), given) == 0
