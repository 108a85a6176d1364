"""The right output at each end, as plain arithmetic on the numbers that were fed in.

This module shares no code with the engine. The input of every pipeline is the numbers 0, 1, 2, ...,
in whole batches, so that no window is ever half full.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random

Row = tuple[int, ...]

BATCH = 20
"""The count of numbers that are fed in at once, and of those in one window."""

NUMBER_MS = 50
WINDOW_MS = BATCH * NUMBER_MS
KEYS = 4  # of a window
VISITS = 5  # of each key that is counted
DOCUMENTS = 16_384  # keys with one document each: a gigabyte
DOCUMENT_BYTES = 65_536
PRIME = 1_000_003
SHOWN_MAX = 5


def amount(number: int) -> int:
    return (number * number + 7) % PRIME


def price(number: int) -> int:
    return (number * 31 + 11) % PRIME


@cache
def digest_before(number: int) -> int:
    """Returns the digest of the document that the previous number of the key left, or 0."""
    if number < DOCUMENTS:
        return 0
    return zlib.crc32(Random(number - DOCUMENTS).randbytes(DOCUMENT_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`row_of` gives the right row for its first `keys` columns.

    The rows of the last `held_back` numbers come out only when the input has ended.
    """

    columns: tuple[str, ...]
    keys: int = 1
    held_back: int = 0
    row_of: Callable[[Row], Row]
    last_number: Callable[[Row], int]  # the last number that a row needs, for the same columns
    named: Callable[[int], Iterator[Row]]  # the first columns of all rows of so many numbers


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
    """Compares the rows at one end with the answer, look by look, and at the end as a whole.

    A row that was seen may not disappear, come twice or change. `lost`, `doubled` and `different`
    name such rows, each once.
    """

    answer: Answer
    lost: set[Row] = field(default_factory=set)
    doubled: set[Row] = field(default_factory=set)
    different: set[Row] = field(default_factory=set)  # whole rows
    seen: set[Row] = field(default_factory=set)

    def look(self, rows: Iterable[Row], fed: int) -> None:
        """`fed` is the count of numbers that had been fed in once the rows had been read."""
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

    def forget(self) -> None:
        """The rows that were seen may now disappear, because they are written again."""
        self.seen = set()

    def end(self, total: int) -> None:
        """Call it after the last look, when the whole answer has to be there."""
        self.lost |= set(self.answer.named(total)) - self.seen

    def has_all(self, total: int) -> bool:
        """Returns True if all rows have come that come before the input ends."""
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
