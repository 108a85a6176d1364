"""A source subtask's reader: its records, its position, and the promise of its watermark."""

import random
from collections import Counter
from datetime import timedelta

import pyarrow as pa
import pytest

from pipelines.connectors.split_progress import SplitPositions
from pipelines.connectors.watermark_strategy import MAX_LEAP_MS
from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.split_reading import MS_PER_HOUR
from pipelines.stream import WatermarkStrategy, monotonous
from tests.unit.runtime.fakes import ListSource, ManualClock, batch_of, keys_of, times_of

HOUR_PER_S = 1.0
SECOND_MS = 1_000.0


@pytest.mark.parametrize("event_hours_per_s", [None, 1000.0])
def test_the_position_is_always_just_after_the_last_record_handed_out(
    event_hours_per_s: float | None,
) -> None:
    source = ListSource([rows(0, 7), rows(7, 11)])
    clock = ManualClock()
    reader = reader_of(source, event_hours_per_s=event_hours_per_s, clock=clock)
    clock.now_ms += SECOND_MS

    read: list[int] = []
    positions: list[int] = []
    while (batch := reader.next()) is not None:
        read += keys_of(batch)
        positions.append(records_before(source, reader.positions()))

    assert read == list(range(11))
    assert positions == [3, 6, 7, 10, 11]


def test_the_position_does_not_count_records_that_are_held_for_their_time() -> None:
    source = ListSource([hourly(0, 6)], batch_rows=6)
    clock = ManualClock()
    reader = reader_of(source, clock=clock, event_hours_per_s=HOUR_PER_S)

    clock.now_ms += 2 * SECOND_MS
    handed_out = reader.next()
    restored = reader_of(source, restored=(reader.positions(),), clock=clock)

    assert handed_out is not None
    assert keys_of(handed_out) == [0, 1, 2]
    assert drained(restored) == [3, 4, 5]


def test_a_paced_reader_hands_out_exactly_what_is_due() -> None:
    source = ListSource([hourly(0, 4), hourly(4, 8)], batch_rows=3)
    clock = ManualClock()
    reader = reader_of(source, clock=clock, event_hours_per_s=HOUR_PER_S)

    read_by_second = []
    for _ in range(8):
        read_by_second.append(drained(reader))
        clock.now_ms += SECOND_MS

    assert read_by_second == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert reader.is_exhausted


def test_a_late_record_waits_behind_the_one_before_it_until_both_are_due() -> None:
    late_last = [(0, 0), (1, 3 * MS_PER_HOUR), (2, MS_PER_HOUR)]
    clock = ManualClock()
    reader = reader_of(ListSource([late_last]), clock=clock, event_hours_per_s=HOUR_PER_S)

    read_by_second = []
    for _ in range(4):
        read_by_second.append(drained(reader))
        clock.now_ms += SECOND_MS

    assert read_by_second == [[0], [], [], [1, 2]]


@pytest.mark.parametrize("seed", range(30))
def test_a_watermark_never_passes_a_record_that_is_still_to_come(seed: int) -> None:
    chance = random.Random(seed)
    source = disordered_source(chance)
    clock = ManualClock()
    pace = chance.choice([None, HOUR_PER_S, 10 * HOUR_PER_S])
    reader = reader_of(source, clock=clock, event_hours_per_s=pace)

    times: list[int] = []
    promises: list[tuple[int, int]] = []  # records read so far, watermark
    while not reader.is_exhausted:
        batch = reader.next()
        times += [] if batch is None else times_of(batch)
        watermark_ms = reader.watermark_ms()
        if watermark_ms is not None:
            promises.append((len(times), watermark_ms))
        clock.now_ms += chance.choice([0.0, 300.0, SECOND_MS])

    assert sorted(times) == sorted(at for split in source.splits for _, at in split)
    assert promises
    for read, watermark_ms in promises:
        assert all(at > watermark_ms for at in times[read:])


def test_a_held_record_moves_the_watermark_up_to_just_before_itself() -> None:
    source = ListSource([hourly(0, 2)], batch_rows=2)
    reader = reader_of(source, clock=ManualClock(), event_hours_per_s=HOUR_PER_S)

    before_ms = reader.watermark_ms()
    reader.next()

    assert before_ms is None
    assert reader.watermark_ms() == MS_PER_HOUR - 1


def test_event_time_ends_with_the_last_record() -> None:
    reader = reader_of(ListSource([rows(0, 2)]))

    drained(reader)

    assert reader.is_exhausted
    assert reader.watermark_ms() == MAX_WATERMARK_MS


def test_a_source_without_event_time_has_no_watermark_until_its_end() -> None:
    reader = reader_of(ListSource([rows(0, 4)], timestamp_column=None), event_hours_per_s=1.0)

    assert reader.watermark_ms() is None
    assert keys_of(some(reader.next())) == [0, 1, 2]
    assert reader.watermark_ms() is None


@pytest.mark.parametrize("seed", range(30))
def test_the_slowest_concurrent_split_holds_back_event_time(seed: int) -> None:
    chance = random.Random(seed)
    splits = [
        sorted((key, chance.randint(0, 1_000)) for key in range(chance.randint(0, 12)))
        for _ in range(chance.randint(1, 5))
    ]
    for split in splits:
        split.sort(key=lambda record: record[1])
    source = ListSource(splits, batch_rows=2, concurrent_splits=len(splits))
    reader = reader_of(source)

    left = Counter(at for split in splits for _, at in split)
    while (batch := reader.next()) is not None:
        left -= Counter(times_of(batch))
        watermark_ms = reader.watermark_ms()
        assert watermark_ms is None or all(at > watermark_ms for at in left)

    assert not left
    assert reader.watermark_ms() == MAX_WATERMARK_MS


def test_the_reader_prefers_the_concurrent_split_that_is_behind() -> None:
    source = ListSource(
        [[(0, 0), (1, 50), (2, 90)], [(3, 10), (4, 20), (5, 60)]],
        batch_rows=1,
        concurrent_splits=2,
    )

    assert drained(reader_of(source)) == [0, 3, 1, 4, 5, 2]


@pytest.mark.parametrize("timestamp_column", [None, "at"])
def test_with_equal_event_time_the_split_that_waited_longest_comes_first(
    timestamp_column: str | None,
) -> None:
    source = ListSource(
        [[(10 * split + row, 7) for row in range(3)] for split in range(3)],
        batch_rows=1,
        concurrent_splits=3,
        timestamp_column=timestamp_column,
    )

    assert drained(reader_of(source)) == [0, 10, 20, 1, 11, 21, 2, 12, 22]


def test_a_silent_split_becomes_idle_after_the_time_out_and_active_with_its_next_record() -> None:
    source = ListSource(
        [[(0, 5), (1, 300)], [(2, 100), (3, 200)]], batch_rows=1, concurrent_splits=2, silent={0}
    )
    clock = ManualClock()
    strategy = monotonous().with_idleness(timedelta(seconds=1))
    reader = reader_of(source, clock=clock, strategy=strategy)
    source.silent.add(1)

    assert drained(reader) == [0, 2]
    assert reader.watermark_ms() == 4
    clock.now_ms += SECOND_MS - 1
    assert drained(reader) == []
    assert reader.watermark_ms() == 4

    reader.take_marks()
    source.silent.remove(1)
    clock.now_ms += 1
    assert drained(reader) == [3]
    assert reader.take_marks() == [Watermark(99), Watermark(199), WatermarkStatus(is_idle=True)]


def test_a_split_does_not_become_idle_while_it_is_not_polled() -> None:
    source = ListSource([[(0, 5)]], silent={0})
    clock = ManualClock()
    strategy = monotonous().with_idleness(timedelta(seconds=1))
    reader = reader_of(source, clock=clock, strategy=strategy)
    reader.next()
    reader.take_marks()

    clock.now_ms += 100 * SECOND_MS  # its records wait to be sent
    reader.next()
    assert reader.take_marks() == []

    clock.now_ms += SECOND_MS
    reader.next()
    assert reader.take_marks() == [WatermarkStatus(is_idle=True)]


def test_each_record_restarts_the_idle_timeout() -> None:
    source = ListSource([[(0, 5), (1, 6), (2, 7)]], batch_rows=1, silent={0})
    clock = ManualClock()
    strategy = monotonous().with_idleness(timedelta(seconds=1))
    reader = reader_of(source, clock=clock, strategy=strategy)
    drained(reader)
    clock.now_ms += 600.0
    source.silent.clear()
    assert keys_of(some(reader.next())) == [1]
    source.silent.add(0)
    drained(reader)
    reader.take_marks()

    clock.now_ms += 600.0
    assert drained(reader) == []

    assert reader.take_marks() == []


def test_event_time_of_a_restored_reader_does_not_go_back() -> None:
    source = ListSource([rows(0, 10)], batch_rows=3)
    reader = reader_of(source, restored_watermark_ms=7)

    reader.next()
    assert reader.take_marks() == [Watermark(7)]

    drained(reader)
    assert reader.take_marks() == [Watermark(8), Watermark(MAX_WATERMARK_MS)]


def test_a_reader_restored_after_its_last_record_ends_event_time_again() -> None:
    source = ListSource([rows(0, 2)])
    before = reader_of(source)
    drained(before)

    after = reader_of(
        source, restored=(before.positions(),), restored_watermark_ms=before.watermark_ms()
    )
    after.next()

    assert after.take_marks() == [Watermark(MAX_WATERMARK_MS)]


def test_no_timestamp_of_a_record_can_end_event_time() -> None:
    reader = reader_of(
        ListSource([[(0, 2**62), (1, 2**62)]], batch_rows=1),
        strategy=monotonous().with_max_leap(None),
    )

    reader.next()

    assert reader.watermark_ms() == MAX_WATERMARK_MS - 1


def test_records_with_an_implausible_timestamp_are_counted_once() -> None:
    reader = reader_of(ListSource([[(0, 1), (1, 2), (2, 10 * MAX_LEAP_MS)]]))

    reader.next()

    assert reader.take_counts() == {"records_read": 3, "timestamps_far_ahead": 1}
    assert reader.take_counts() == {}
    assert reader.watermark_ms() == 1


def test_a_subtask_without_splits_ends_event_time_at_once() -> None:
    reader = reader_of(ListSource([rows(0, 2)]), subtask=1, parallelism=2)

    assert reader.next() is None
    assert reader.watermark_ms() == MAX_WATERMARK_MS


@pytest.mark.parametrize("seed", range(30))
def test_a_restore_at_another_parallelism_reads_every_record_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    source = random_source(chance)
    source.concurrent_splits = chance.randint(1, 3)
    restored: tuple[Json, ...] = ()
    read: list[int] = []

    for parallelism in [chance.randint(1, 4) for _ in range(3)]:
        readers = [reader_of(source, restored, i, parallelism) for i in range(parallelism)]
        for _ in range(chance.randint(0, 8)):
            batch = chance.choice(readers).next()
            read += [] if batch is None else keys_of(batch)
        restored = tuple(reader.positions() for reader in readers)
    for subtask in range(3):
        read += drained(reader_of(source, restored, subtask, 3))

    assert sorted(read) == [key for split in source.splits for key, _ in split]


def test_all_subtasks_pace_from_the_earliest_record_of_any_subtask() -> None:
    source = ListSource([hourly(0, 2), hourly(2, 4)])
    clock = ManualClock()
    readers = [reader_of(source, (), i, 2, clock, HOUR_PER_S) for i in range(2)]

    at_once = [drained(reader) for reader in readers]
    clock.now_ms += 2 * SECOND_MS
    after_two_seconds = [drained(reader) for reader in readers]

    assert at_once == [[0], []]
    assert after_two_seconds == [[1], [2]]


def reader_of(
    source: ListSource,
    restored: tuple[Json, ...] = (),
    subtask: int = 0,
    parallelism: int = 1,
    clock: ManualClock | None = None,
    event_hours_per_s: float | None = None,
    strategy: WatermarkStrategy | None = None,
    restored_watermark_ms: int | None = None,
) -> DirectReader:
    return DirectReader(
        source=source,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        clock=clock or ManualClock(),
        event_hours_per_s=event_hours_per_s,
        strategy=strategy,
        restored_watermark_ms=restored_watermark_ms,
    )


def rows(first: int, end: int) -> list[tuple[int, int]]:
    return [(key, key) for key in range(first, end)]


def hourly(first: int, end: int) -> list[tuple[int, int]]:
    return [(key, key * MS_PER_HOUR) for key in range(first, end)]


def random_source(chance: random.Random) -> ListSource:
    splits, first = [], 0
    for _ in range(chance.randint(1, 9)):
        end = first + chance.randint(0, 7)
        splits.append(rows(first, end))
        first = end
    return ListSource(splits, batch_rows=chance.randint(1, 4))


def disordered_source(chance: random.Random) -> ListSource:
    """A source with records up to an hour out of order in a split, and splits an hour apart."""
    splits, start_ms = [], 0
    for _ in range(3):
        times = [start_ms + i * 900_000 for i in range(chance.randint(1, 9))]
        splits.append([(0, at - chance.randint(0, MS_PER_HOUR)) for at in times])
        start_ms = times[-1] + MS_PER_HOUR
    return ListSource(splits, batch_rows=chance.randint(1, 4), out_of_orderness_ms=MS_PER_HOUR)


def records_before(source: ListSource, positions: Json) -> int:
    """Returns how many records, over all splits in order, lie before one subtask's position."""
    split, offset = SplitPositions.from_json(positions).current()
    return sum(len(records) for records in source.splits[:split]) + offset


def drained(reader: DirectReader) -> list[int]:
    read: list[int] = []
    while (batch := reader.next()) is not None:
        read += keys_of(batch)
    return read


def some(batch: pa.RecordBatch | None) -> pa.RecordBatch:
    return batch if batch is not None else batch_of([])
