"""Records of one partition as columns, made from the client's messages as soon as they arrive.

Python's garbage collector inspects a message again and again for as long as it lives, which costs
more than fetching it; it does not inspect bytes and numbers. So no message outlives its fetch.
Decides nothing about what is read.
"""

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
