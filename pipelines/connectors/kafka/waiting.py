"""Records of one partition that were fetched and are not handed out yet, and how many may be.

A consumer delivers the records of all its partitions in one sequence, whichever is asked for; those
of the others wait here. Says when a partition has to pause; pauses none itself.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice

import numpy as np
from confluent_kafka import Message

from pipelines.connectors.source import Offsets
from pipelines.domain.errors import check

BATCH_ROWS = 20_000
BATCH_BYTES = 16 * 1024 * 1024


class WaitingRecords:
    """In order. Pausing at two batches and going on below one, it holds less than two batches and
    what came with the fetch that filled it.
    """

    def __init__(self, end_offset: int | None) -> None:
        self._end_offset = end_offset
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._end_seen = 0
        self.is_paused = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def has_batch(self) -> bool:
        return len(self._messages) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= 2 * BATCH_ROWS or self._bytes >= 2 * BATCH_BYTES

    @property
    def end(self) -> int:
        """Behind all that was taken there is nothing before it but markers of transactions, which
        nobody gets; 0 where that is not known.
        """
        return 0 if self._messages else self._end_seen

    def add(self, messages: Sequence[Message]) -> None:
        """As they come: of this partition, in order, and none of them an error."""
        if self._end_offset is not None and offset_of(messages[-1]) >= self._end_offset:
            inside = int(np.searchsorted(offsets_of(messages), self._end_offset))
            self.on_end(offset_of(messages[inside]))
            messages = messages[:inside]
        self._messages.extend(messages)
        self._bytes += bytes_of(messages)

    def on_end(self, offset: int) -> None:
        self._end_seen = offset

    def take(self) -> list[Message]:
        """The next batch, or what there is."""
        count = self._fitting_count()
        batch = [self._messages.popleft() for _ in range(count)]
        self._bytes -= bytes_of(batch)
        return batch

    def _fitting_count(self) -> int:
        """Sizes are looked at one by one only where they matter."""
        if self._bytes <= BATCH_BYTES:
            return min(len(self._messages), BATCH_ROWS)
        sizes = accumulate(size_of(message) for message in islice(self._messages, BATCH_ROWS))
        return next(
            (count for count, total in enumerate(sizes, 1) if total >= BATCH_BYTES),
            min(len(self._messages), BATCH_ROWS),
        )


def by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, Sequence[Message]]]:
    """`<topic>-<partition>` of those that follow each other. Most often there is but one."""
    if len(set(map(Message.partition, messages))) == len(set(map(Message.topic, messages))) == 1:
        yield _partition_name(messages[0]), messages
        return
    for name, of_one in groupby(messages, key=_partition_name):
        yield name, list(of_one)


def _partition_name(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}"


def bytes_of(messages: Sequence[Message]) -> int:
    """Of keys and values; `len` of a record is that of its value."""
    keys = map(Message.key, messages)
    return sum(map(len, messages)) + sum(len(key) for key in keys if key is not None)


def offset_of(message: Message) -> int:
    return int(offsets_of([message])[0])


def offsets_of(messages: Sequence[Message]) -> Offsets:
    offsets = list(map(Message.offset, messages))
    check(None not in offsets, "what was consumed has an offset")
    return np.array(offsets, np.int64)


def size_of(message: Message) -> int:
    """Bytes of key and value."""
    return len(message.key() or b"") + len(message)
