"""Records of one partition that were fetched and are not handed out yet, and how many may be.

A consumer delivers the records of all its partitions in one sequence, whichever is asked for; those
of the others wait here. Says when a partition has to pause; pauses none itself.
"""

from collections import deque

from confluent_kafka import Message

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

    def add(self, message: Message) -> None:
        if self._end_offset is not None and offset_of(message) >= self._end_offset:
            self.on_end(offset_of(message))
            return
        self._messages.append(message)
        self._bytes += size_of(message)

    def on_end(self, offset: int) -> None:
        self._end_seen = offset

    def take(self) -> list[Message]:
        """The next batch, or what there is."""
        batch: list[Message] = []
        batch_bytes = 0
        while self._messages and len(batch) < BATCH_ROWS and batch_bytes < BATCH_BYTES:
            message = self._messages.popleft()
            batch_bytes += size_of(message)
            batch.append(message)
        self._bytes -= batch_bytes
        return batch


def offset_of(message: Message) -> int:
    offset = message.offset()
    check(offset is not None, "what was consumed has an offset")
    return offset or 0


def size_of(message: Message) -> int:
    """Bytes of key and value."""
    return len(message.key() or b"") + len(message.value() or b"")
