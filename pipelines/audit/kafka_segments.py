"""Which transactions of a producer are the next segment of its log. Pure.

Each partition has a producer's transactions in their order, but which on one partition belongs to
which on another is not written there. The next segment begins with the earliest written of what
comes next; failing that, it is any of it that adds up.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from pipelines.audit.kafka_writers import Committed
from pipelines.audit.output import Covers, Rows, total

SUBSETS_MAX = 10
"""Of how many partitions all subsets are tried."""


class PublishedSegments:
    """Takes segments off, each once; that they are the right ones, count and digest prove."""

    def __init__(self, committed: Mapping[int, Sequence[Committed]]) -> None:
        self._committed = committed
        self._taken: dict[tuple[int, int], int] = {}  # by producer and partition

    def take(self, producer_id: int, expected: Rows) -> Covers | Rows:
        """The producer's next segment; or what is there instead, and is left there."""
        heads = self._heads(producer_id)
        for chosen in _choices(heads):
            found = total(each.rows for each in chosen)
            is_digested = None not in (found.digest, expected.digest)
            if found.count == expected.count and (
                found.digest == expected.digest or not is_digested
            ):
                for each in chosen:
                    key = producer_id, each.partition
                    self._taken[key] = self._taken.get(key, 0) + 1
                return Covers.DIGESTED if is_digested else Covers.COUNTED
        return total(each.rows for each in heads)

    def left(self, producer_id: int) -> list[Committed]:
        return [each for of_one in self._left(producer_id).values() for each in of_one]

    def _heads(self, producer_id: int) -> list[Committed]:
        """What comes next on each partition, the earliest written first."""
        left = [of_one[0] for of_one in self._left(producer_id).values() if of_one]
        return sorted(left, key=lambda each: each.at_ms)

    def _left(self, producer_id: int) -> dict[int, list[Committed]]:
        left: dict[int, list[Committed]] = {}
        for each in self._committed.get(producer_id, ()):
            left.setdefault(each.partition, []).append(each)
        return {
            partition: of_one[self._taken.get((producer_id, partition), 0) :]
            for partition, of_one in left.items()
        }


def _choices(heads: Sequence[Committed]) -> Iterator[Sequence[Committed]]:
    for count in range(1, len(heads) + 1):
        yield heads[:count]
    if len(heads) <= SUBSETS_MAX:
        for count in range(1, len(heads)):
            yield from combinations(heads, count)
