"""Records of one partition as columns, made from the client's messages as soon as they arrive.

Python's garbage collector inspects a message again and again for as long as it lives, which costs
more than fetching it; it does not inspect bytes and numbers. So no message outlives its fetch.

A consumer delivers the records of all its partitions in one sequence, whichever you ask for; those
of the other partitions wait here, up to a bound. This module says when a partition has to pause;
it pauses none itself, and does not decide what is read.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from confluent_kafka import Message

from pipelines.connectors.source import Offsets
from pipelines.domain.errors import check

Blobs = list[bytes | None]


@dataclass(frozen=True, slots=True)
class Fetched:
    """In the order of their offsets. `times_ms`: -1 where Kafka keeps no time. `bytes`: the size of
    keys and values."""

    offsets: Offsets
    keys: Blobs
    values: Blobs
    times_ms: npt.NDArray[np.int64]
    bytes: int

    def __len__(self) -> int:
        return len(self.values)

    def divided(self, row: int) -> tuple["Fetched", "Fetched"]:
        """The records before that row, and those from it on."""
        if row == len(self):
            return self, NOTHING
        return self._slice(0, row), self._slice(row, len(self))

    def fitting_count(self, rows: int, bytes_: int) -> int:
        """How many of the first `rows` to take, up to the one that brings them to `bytes_` or
        more."""
        if self.bytes <= bytes_:  # looks at single sizes only where they matter
            return min(len(self), rows)
        totals = accumulate(map(_size, islice(self.keys, rows), self.values))
        fitting = (count for count, total in enumerate(totals, 1) if total >= bytes_)
        return next(fitting, min(len(self), rows))

    def with_values(self) -> "Fetched":
        """Without the records that are deletions."""
        if None not in self.values:
            return self
        rows = np.array([row for row, value in enumerate(self.values) if value is not None], int)
        return Fetched(
            self.offsets[rows],
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            self.times_ms[rows],
            self.bytes,
        )

    def _slice(self, start: int, stop: int) -> "Fetched":
        keys, values = self.keys[start:stop], self.values[start:stop]
        size = sum(map(_size, keys, values))
        return Fetched(self.offsets[start:stop], keys, values, self.times_ms[start:stop], size)


NOTHING = Fetched(np.empty(0, np.int64), [], [], np.empty(0, np.int64), 0)


def fetched_of(messages: Sequence[Message]) -> Fetched:
    """`messages` contains no errors."""
    offsets = list(map(Message.offset, messages))
    check(None not in offsets, "what was consumed has an offset")
    keys = list(map(Message.key, messages))
    return Fetched(
        np.array(offsets, np.int64),
        keys,
        list(map(Message.value, messages)),
        np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages)),
        sum(map(len, messages)) + sum(len(key) for key in keys if key is not None),
    )


def joined(parts: Sequence[Fetched]) -> Fetched:
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return Fetched(
        np.concatenate([part.offsets for part in parts]),
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        np.concatenate([part.times_ms for part in parts]),
        sum(part.bytes for part in parts),
    )


def by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, Fetched]]:
    """Groups successive messages by `<topic>-<partition>`; usually there is only one group."""
    if len(set(map(Message.partition, messages))) == len(set(map(Message.topic, messages))) == 1:
        yield place_of(messages[0]), fetched_of(messages)
        return
    for name, of_one in groupby(messages, key=place_of):
        yield name, fetched_of(list(of_one))


def place_of(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}"


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


BATCH_ROWS = 20_000
BATCH_BYTES = 16 * 1024 * 1024


class WaitingRecords:
    """In order. Pauses at two batches and resumes below one, so it holds less than two batches and
    what came with the fetch that filled it.
    """

    def __init__(self, end_offset: int | None) -> None:
        self._end_offset = end_offset
        self._fetched: deque[Fetched] = deque()
        self._rows = 0
        self._bytes = 0
        self._end_seen = 0
        self.is_paused = False

    def __len__(self) -> int:
        return self._rows

    @property
    def has_batch(self) -> bool:
        return self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    @property
    def is_full(self) -> bool:
        return self._rows >= 2 * BATCH_ROWS or self._bytes >= 2 * BATCH_BYTES

    @property
    def end(self) -> int:
        """The end behind what was taken: only transaction markers come before it, and consumers
        do not get those. 0 if not known.
        """
        return 0 if self._rows else self._end_seen

    def add(self, fetched: Fetched) -> None:
        """`fetched` holds at least one record."""
        if self._end_offset is not None and fetched.offsets[-1] >= self._end_offset:
            inside = int(np.searchsorted(fetched.offsets, self._end_offset))
            self.on_end(int(fetched.offsets[inside]))
            fetched, _ = fetched.divided(inside)
        self._put(fetched)

    def on_end(self, offset: int) -> None:
        self._end_seen = offset

    def take(self) -> Fetched:
        """The next batch, or as much of it as there is."""
        parts: list[Fetched] = []
        rows, bytes_ = BATCH_ROWS, BATCH_BYTES  # the room that is left
        while self._fetched and rows > 0 and bytes_ > 0:
            first = self._fetched.popleft()
            taken, rest = first.divided(first.fitting_count(rows, bytes_))
            if len(rest):
                self._fetched.appendleft(rest)
            parts.append(taken)
            rows, bytes_ = rows - len(taken), bytes_ - taken.bytes
        self._rows -= BATCH_ROWS - rows
        self._bytes -= BATCH_BYTES - bytes_
        return joined(parts)

    def _put(self, fetched: Fetched) -> None:
        if len(fetched):
            self._fetched.append(fetched)
            self._rows += len(fetched)
            self._bytes += fetched.bytes
