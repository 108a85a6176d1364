"""The order of requests: which request the operator makes next, and which results may leave.

Pure. The operator makes the requests and reports the answers to this queue. Rows that arrived
together are one `Work`. Marks of event time are between them, in the order of the input.

Source: Flink's `OrderedStreamElementQueue` and `UnorderedStreamElementQueue`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import check
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.origins import Origins

TimeMark: TypeAlias = Watermark | WatermarkStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request; `error` is None if it succeeded."""

    value: Any = None
    error: Exception | None = None
    is_late: bool = False  # the request timed out, and the author's `timed_out` gave the value


@dataclass(slots=True)
class Work:
    """Rows that arrived together, with one request for each row or one for all."""

    rows: pa.RecordBatch
    origins: Origins
    count: int
    requested: int = 0
    is_given: npt.NDArray[np.bool_] = field(init=False)
    _answers: dict[int, Answer] = field(default_factory=dict)
    _given: int = 0

    def __post_init__(self) -> None:
        self.is_given = np.zeros(self.count, np.bool_)

    @property
    def is_done(self) -> bool:
        return self._given == self.count

    def answer(self, number: int, answer: Answer) -> None:
        is_open = number < self.requested and number not in self._answers
        check(is_open and not self.is_given[number], "a request is answered once", number=number)
        self._answers[number] = answer

    def take(self, *, in_order: bool) -> list[tuple[int, Answer]]:
        """Removes and returns the answers that may leave, by number."""
        numbers = self._next_in_order() if in_order else sorted(self._answers)
        taken = [(number, self._answers.pop(number)) for number in numbers]
        self.is_given[numbers] = True
        self._given += len(numbers)
        return taken

    def _next_in_order(self) -> list[int]:
        end = self._given
        while end in self._answers:
            end += 1
        return list(range(self._given, end))


@dataclass(frozen=True, slots=True)
class Results:
    work: Work
    answers: list[tuple[int, Answer]]


class RequestQueue:
    """Guarantee: results and marks of event time never overtake each other.

    No mark leaves before the results of the rows that arrived before it, and no result before the
    marks that arrived before its row. With `in_order`, results leave in the order of their rows.
    """

    def __init__(self, capacity: int, *, in_order: bool) -> None:
        """`capacity` limits the requests that were made and whose results have not left."""
        self._capacity = capacity
        self._in_order = in_order
        self._entries: deque[Work | TimeMark] = deque()
        self._to_ask: deque[Work] = deque()
        self._under_way = 0
        self._has_ended = False  # event time has ended, and nothing follows

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def is_full(self) -> bool:
        """True if rows wait for their request, or the end of event time for earlier entries."""
        return bool(self._to_ask) or (self._has_ended and bool(self._entries))

    def add(self, work: Work) -> None:
        self._entries.append(work)
        self._to_ask.append(work)

    def add_mark(self, mark: TimeMark) -> None:
        """Adds a mark; a watermark replaces one that it follows directly."""
        if isinstance(mark, Watermark):
            self._has_ended = self._has_ended or mark.timestamp_ms >= MAX_WATERMARK_MS
            if self._entries and isinstance(self._entries[-1], Watermark):
                self._entries.pop()
        self._entries.append(mark)

    def take_to_ask(self) -> list[tuple[Work, int]]:
        """Returns the requests to make now."""
        taken: list[tuple[Work, int]] = []
        while self._to_ask and self._under_way < self._capacity:
            work = self._to_ask[0]
            taken.append((work, work.requested))
            work.requested += 1
            self._under_way += 1
            if work.requested == work.count:
                self._to_ask.popleft()
        return taken

    def take_due(self) -> Iterator[Results | TimeMark]:
        """Yields the results and marks that may leave now, in order."""
        while self._entries:
            first = self._entries[0]
            if not isinstance(first, Work):
                self._entries.popleft()
                yield first
                continue
            yield from self._take_answered()
            self._forget_done()
            if self._entries and isinstance(self._entries[0], Work):
                return

    def unfinished(self) -> list[Work]:
        """Returns all work with results that have not left, in order of arrival."""
        return [entry for entry in self._entries if isinstance(entry, Work)]

    def _take_answered(self) -> Iterator[Results]:
        """Yields the results that may leave, up to the next mark."""
        for entry in self._entries:
            if not isinstance(entry, Work):
                return
            if answers := entry.take(in_order=self._in_order):
                self._under_way -= len(answers)
                yield Results(entry, answers)
            if self._in_order and not entry.is_done:
                return

    def _forget_done(self) -> None:
        kept = [each for each in self._entries if not (isinstance(each, Work) and each.is_done)]
        self._entries = deque(kept)
