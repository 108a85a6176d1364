"""What each end has to hold, as plain arithmetic on the numbers that were fed in.

Shares no code with the engine. The input of every pipeline is the numbers 0, 1, 2, ..., in whole
batches, so that no window is ever half full.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random

Row = tuple[int, ...]

BATCH = 20
"""Numbers that are fed in at once; also those of one window."""

NUMBER_MS = 50
WINDOW_MS = BATCH * NUMBER_MS
KEYS = 4  # of a window
VISITS = 5  # of each key that is counted
DOCUMENTS = 16_384  # keys that keep one each: a gigabyte
DOCUMENT_BYTES = 65_536
PRIME = 1_000_003
SHOWN_MAX = 5


def amount(number: int) -> int:
    return (number * number + 7) % PRIME


def price(number: int) -> int:
    return (number * 31 + 11) % PRIME


@cache
def digest_before(number: int) -> int:
    """Of the document that the number before it of the same key has left; the first finds none."""
    if number < DOCUMENTS:
        return 0
    return zlib.crc32(Random(number - DOCUMENTS).randbytes(DOCUMENT_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`row_of` gives the right row by its first `keys` columns. `held_back`: of so many numbers the
    rows come out only when the input has ended."""

    columns: tuple[str, ...]
    keys: int = 1
    held_back: int = 0
    row_of: Callable[[Row], Row]
    last_number: Callable[[Row], int]  # that it needs, by the same columns
    named: Callable[[int], Iterator[Row]]  # the first columns of all rows, by how many were fed in


def _each(total: int) -> Iterator[Row]:
    return ((number,) for number in range(total))


def _windows(total: int) -> Iterator[Row]:
    starts = range(0, total * NUMBER_MS, WINDOW_MS)
    return ((start_ms, key) for start_ms in starts for key in range(KEYS))


def _window(name: Row) -> Row:
    start_ms, key = name
    first = start_ms // NUMBER_MS
    numbers = [n for n in range(first, first + BATCH) if n % KEYS == key]
    return (*name, len(numbers), sum(amount(n) + price(n) for n in numbers))


def _single(*values: Callable[[int], int]) -> Callable[[Row], Row]:
    return lambda name: (name[0], *(value(name[0]) for value in values))


AMOUNTS = Answer(
    columns=("n", "amount"),
    row_of=_single(amount),
    last_number=lambda name: name[0],
    named=_each,
)
PAIRS = Answer(
    columns=("n", "amount", "price"),
    row_of=_single(amount, price),
    last_number=lambda name: name[0],
    named=_each,
)
COUNTS = Answer(
    columns=("n", "nth"),
    row_of=_single(lambda number: number % VISITS + 1),
    last_number=lambda name: name[0],
    named=_each,
)
REPLACED = Answer(
    columns=("n", "before"),
    row_of=_single(digest_before),
    last_number=lambda name: name[0],
    named=_each,
)
WINDOWS = Answer(
    columns=("start_ms", "key", "pairs", "total"),
    keys=2,
    held_back=BATCH,
    row_of=_window,
    last_number=lambda name: name[0] // NUMBER_MS + BATCH - 1,
    named=_windows,
)


@dataclass(slots=True)
class Checker:
    """Compares what one end shows, look by look, and at the end as a whole.

    What was seen once may not go, come twice or change: `lost`, `doubled` and `different` name the
    rows, each once.
    """

    answer: Answer
    lost: set[Row] = field(default_factory=set)
    doubled: set[Row] = field(default_factory=set)
    different: set[Row] = field(default_factory=set)  # whole rows
    seen: set[Row] = field(default_factory=set)

    def look(self, rows: Iterable[Row], fed: int) -> None:
        """`fed`: how many numbers had been fed in when the rows had been read."""
        counted = Counter(tuple(row) for row in rows)
        by_name = Counter[Row]()
        for row, times in counted.items():
            name = row[: self.answer.keys]
            by_name[name] += times
            if not self._is_right(row, name, fed):
                self.different.add(row)
        self.doubled |= {name for name, times in by_name.items() if times > 1}
        self.lost |= self.seen - by_name.keys()
        self.seen = set(by_name)

    def end(self, total: int) -> None:
        """After the last look: all of the answer has to be there."""
        self.lost |= set(self.answer.named(total)) - self.seen

    def has_all(self, total: int) -> bool:
        """Whether all has come that comes before the input ends."""
        return all(name in self.seen for name in self.answer.named(total - self.answer.held_back))

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.different)

    def samples(self) -> list[str]:
        found = (("lost", self.lost), ("doubled", self.doubled), ("different", self.different))
        return [f"{what} {row}" for what, rows in found for row in sorted(rows)[:SHOWN_MAX]]

    def _is_right(self, row: Row, name: Row, fed: int) -> bool:
        is_fed = all(part >= 0 for part in name) and self.answer.last_number(name) < fed
        return is_fed and row == self.answer.row_of(name)
