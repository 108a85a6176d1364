"""The order of asynchronous requests: random arrivals by seed, then named cases."""

import random

import pyarrow as pa
import pytest

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.asynchronous.request_queue import Answer, RequestQueue, Results, Work

CAPACITY = 5


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_results_stay_between_the_watermarks_around_their_rows(seed: int, in_order: bool) -> None:
    rng = random.Random(seed)
    queue = RequestQueue(CAPACITY, in_order=in_order)
    came: list[int | str] = []  # rows are numbers, marks are text
    left: list[int | str] = []
    under_way: list[tuple[Work, int]] = []
    next_row = 0
    while next_row < 60 or under_way or not queue.is_empty:
        under_way += queue.take_to_ask()
        assert len(under_way) <= CAPACITY
        choice = rng.random()
        if next_row < 60 and choice < 0.3:
            count = rng.randint(1, 9)
            came += range(next_row, next_row + count)
            queue.add(work(range(next_row, next_row + count)))
            next_row += count
        elif next_row < 60 and choice < 0.5:
            came.append(f"{next_row}")
            queue.add_mark(Watermark(next_row))
        elif under_way:
            asked, number = under_way.pop(rng.randrange(len(under_way)))
            asked.answer(number, Answer())
            left += taken(queue)
        else:
            left += taken(queue)

    assert [each for each in left if isinstance(each, int)] == list(range(next_row)) or not in_order
    assert sections(left) == sections(came)


def test_a_request_is_answered_once() -> None:
    queue = RequestQueue(1, in_order=True)
    queue.add(work(range(1)))
    ((asked, number),) = queue.take_to_ask()
    asked.answer(number, Answer())

    with pytest.raises(InvariantViolated):
        asked.answer(number, Answer())


def test_results_waiting_for_their_turn_count_towards_the_capacity() -> None:
    queue = RequestQueue(2, in_order=True)
    queue.add(work(range(4)))
    _, (second, number) = queue.take_to_ask()

    second.answer(number, Answer())

    assert taken(queue) == []
    assert queue.take_to_ask() == []
    assert queue.is_full


def test_idleness_is_reported_after_the_results_before_it() -> None:
    queue = RequestQueue(2, in_order=False)
    queue.add(work(range(1)))
    queue.add_mark(WatermarkStatus(is_idle=True))
    ((asked, number),) = queue.take_to_ask()
    assert list(queue.take_due()) == []

    asked.answer(number, Answer())

    *_, last = queue.take_due()
    assert last == WatermarkStatus(is_idle=True)


def test_after_the_final_watermark_the_queue_is_full_until_all_results_left() -> None:
    queue = RequestQueue(2, in_order=False)
    queue.add(work(range(1)))
    ((asked, number),) = queue.take_to_ask()
    assert not queue.is_full

    queue.add_mark(Watermark(MAX_WATERMARK_MS))
    assert queue.is_full
    asked.answer(number, Answer())
    assert taken(queue) == [0, str(MAX_WATERMARK_MS)]

    assert not queue.is_full


def work(numbers: range) -> Work:
    return Work(pa.record_batch({"x": list(numbers)}), (), len(numbers))


def taken(queue: RequestQueue) -> list[int | str]:
    left: list[int | str] = []
    for due in queue.take_due():
        if isinstance(due, Results):
            rows = due.work.rows.column("x").to_pylist()
            left += [rows[number] for number, _ in due.answers]
        elif isinstance(due, Watermark):
            left.append(str(due.timestamp_ms))
    return left


def sections(elements: list[int | str]) -> list[frozenset[int] | str]:
    """Groups the rows between watermarks; of adjacent watermarks, it keeps only the last."""
    found: list[frozenset[int] | str] = []
    for each in elements:
        last = found[-1] if found else ""
        if isinstance(each, int):
            rows = found.pop() if isinstance(last, frozenset) else frozenset[int]()
            found.append(frozenset({*rows, each}))
        else:
            if found and isinstance(last, str):
                found.pop()
            found.append(each)
    return found
