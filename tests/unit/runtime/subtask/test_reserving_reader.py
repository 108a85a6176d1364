"""At most once: a record that was handed out is never read again, whenever the attempt dies."""

import random
from typing import Any, cast

import pyarrow as pa
import pytest

from pipelines.channels.credit import cost_of
from pipelines.domain.elements import Records
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.reserving_reader import ReservingReader
from tests.unit.runtime.fakes import ListSource, ManualClock, keys_of

SPLITS = [[(100 * split + i, i) for i in range(20)] for split in range(5)]
EVERYTHING = {key for split in SPLITS for key, _ in split}


@pytest.mark.parametrize("seed", range(60))
def test_no_record_is_handed_out_twice_whenever_the_attempt_dies(seed: int) -> None:
    chance = random.Random(seed)
    emitted: list[int] = []
    stored: Json = None  # of the newest completed checkpoint
    number = 0

    reader = reader_from(stored)
    while not reader.is_exhausted:
        step = chance.random()
        if step < 0.08:
            reader = reader_from(stored)  # the attempt died
        elif step < 0.3:
            number += 1
            reserved = reader.reserved(CheckpointId(number))
            fate = chance.random()
            if fate < 0.2:
                reader.on_aborted(CheckpointId(number))
            elif fate < 0.8:
                stored = reserved  # durable; the notice may or may not arrive
                if chance.random() < 0.8:
                    reader.on_completed(CheckpointId(number))
        else:
            batch = reader.next()
            emitted += [] if batch is None else keys_of(batch)

    assert len(emitted) == len(set(emitted))
    assert set(emitted) <= EVERYTHING


def test_without_failure_all_records_come_in_order_and_count_on_hand_out() -> None:
    reader = reader_from(None)
    emitted: list[int] = []
    number = counted = 0

    while not reader.is_exhausted:
        batch = reader.next()
        counted += reader.take_counts().get("records_read", 0)
        if batch is not None:
            emitted += keys_of(batch)
            assert counted == len(emitted)
            continue
        number += 1
        reader.reserved(CheckpointId(number))
        reader.on_completed(CheckpointId(number))

    assert emitted == sorted(EVERYTHING)


def test_no_record_is_handed_out_before_a_completed_checkpoint_reserves_it() -> None:
    reader = reader_from(None)

    assert reader.next() is None
    reader.reserved(CheckpointId(1))
    assert reader.next() is None
    reader.on_completed(CheckpointId(1))
    batch = reader.next()

    assert batch is not None
    assert keys_of(batch) == [0, 1, 2]


def test_an_aborted_checkpoint_reserves_nothing() -> None:
    reader = reader_from(None)
    reader.next()
    reader.reserved(CheckpointId(1))

    reader.on_completed(CheckpointId(2))

    assert reader.next() is None


def test_the_exact_position_follows_the_output_and_the_reserved_is_ahead() -> None:
    reader = reader_from(None)
    reader.next()
    reader.reserved(CheckpointId(1))
    reader.on_completed(CheckpointId(1))
    batch = reader.next()
    assert batch is not None

    exact, reserved = reader.positions(), reader.reserved(CheckpointId(2))

    assert first_key_from(exact) == 3
    assert first_key_from(reserved) > 3


def test_the_reader_reads_ahead_only_up_to_its_bound() -> None:
    reader = reader_from(None, ahead_bytes_max=1)

    for _ in range(10):
        assert reader.next() is None
    reserved = reader.reserved(CheckpointId(1))

    assert first_key_from(reserved) == 3


def test_a_full_reader_requests_one_checkpoint_until_one_reserves_it() -> None:
    reader = reader_from(None, ahead_bytes_max=1)
    before_reading = reader.take_wish()
    reader.next()

    wishes = [reader.take_wish(), reader.take_wish()]
    reader.reserved(CheckpointId(1))
    reader.on_completed(CheckpointId(1))
    while_some_is_granted = reader.take_wish()
    reader.next()
    reader.next()

    assert (before_reading, wishes, while_some_is_granted) == (False, [True, False], False)
    assert reader.take_wish(), "for what was read since"


def test_an_aborted_checkpoint_is_requested_again_for_its_records() -> None:
    reader = reader_from(None, ahead_bytes_max=1)
    reader.next()
    before = reader.take_wish()
    reader.reserved(CheckpointId(1))
    under_way = reader.take_wish()

    reader.on_aborted(CheckpointId(1))
    again = [reader.take_wish(), reader.take_wish()]
    reader.reserved(CheckpointId(2))
    reader.on_completed(CheckpointId(2))

    assert (before, under_way, again) == (True, False, [True, False])
    assert reader.next() is not None


def test_a_request_is_repeated_if_its_checkpoint_aborts_before_arriving() -> None:
    reader = reader_from(None, ahead_bytes_max=1)
    reader.next()
    told = reader.take_wish()

    reader.on_aborted(CheckpointId(1))

    assert (told, reader.take_wish()) == (True, True)


def test_records_reserved_by_another_checkpoint_too_need_no_new_request() -> None:
    reader = reader_from(None, ahead_bytes_max=1)
    reader.next()
    reader.reserved(CheckpointId(1))
    reader.reserved(CheckpointId(2))

    reader.on_aborted(CheckpointId(1))

    assert not reader.take_wish()


def test_a_checkpoint_is_requested_before_the_reserved_records_run_out() -> None:
    batches = 4
    reader = reader_from(None, ahead_bytes_max=batches * cost_of(Records(first_batch())))
    while reader.next() is None and reader.has_read_ahead:
        pass
    reader.reserved(CheckpointId(1))
    reader.on_completed(CheckpointId(1))

    wishes = []
    for _ in range(batches):
        assert reader.next() is not None
        wishes.append(reader.take_wish())

    assert wishes == [False, False, True, False], "when half of it was read, and one is left"


def test_checkpoints_are_requested_at_the_first_record_then_at_doublings() -> None:
    source = ListSource([[(i, i) for i in range(200)]], batch_rows=1)
    plain = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )
    reader = ReservingReader(cast("DirectReader", OneAtATime(plain)), 1 << 20)
    wished_at = []
    for read in range(1, 101):
        reader.next()
        if reader.take_wish():
            wished_at.append(read)
            reader.reserved(CheckpointId(read))
            reader.on_completed(CheckpointId(read))

    assert wished_at == [1, 2, 4, 8, 16, 32, 64]


def test_a_reader_with_granted_or_reserved_records_requests_no_checkpoint() -> None:
    reader = reader_from(None)
    reader.next()
    reader.reserved(CheckpointId(1))
    while_reserved = reader.take_wish()
    reader.next()
    while_one_is_under_way = reader.take_wish()
    reader.on_completed(CheckpointId(1))

    assert reader.next() is not None
    while_there_is_more = reader.take_wish()

    assert (while_reserved, while_one_is_under_way, while_there_is_more) == (False, False, False)


def test_an_exhausted_source_requests_a_checkpoint_that_frees_the_tail() -> None:
    reader = reader_from(None)
    while reader.next() is None and reader.has_read_ahead:
        pass

    assert reader.take_wish()
    assert not reader.is_exhausted


def test_a_short_tail_requests_its_checkpoint_with_the_last_granted_record() -> None:
    source = ListSource([[(i, i) for i in range(9)]], batch_rows=1)
    reader = ReservingReader(
        DirectReader(
            source=source,
            restored=(),
            subtask=0,
            parallelism=1,
            clock=ManualClock(),
            event_hours_per_s=None,
        ),
        1 << 20,
    )
    for _ in range(2):  # eight batches of nine
        reader.next()
    reader.reserved(CheckpointId(1))
    reader.on_completed(CheckpointId(1))
    wishes = []
    while reader.next() is not None:
        wishes.append(reader.take_wish())

    assert wishes == [False] * 7 + [True], "with the last that may be handed out"


def test_event_time_follows_only_the_records_handed_out() -> None:
    reader = reader_from(None)
    reader.next()
    assert reader.watermark_ms() is None
    reader.reserved(CheckpointId(1))
    reader.on_completed(CheckpointId(1))

    reader.next()

    assert reader.watermark_ms() == 1, "just before the newest record that came out"


def reader_from(stored: Json, ahead_bytes_max: int = 1 << 20) -> ReservingReader:
    restored = () if stored is None else (stored,)
    source = ListSource(SPLITS)
    reader = DirectReader(
        source=source,
        restored=restored,
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )
    return ReservingReader(reader, ahead_bytes_max)


class OneAtATime:
    """A reader that gives a batch only every second time."""

    def __init__(self, reader: DirectReader) -> None:
        self._reader = reader
        self._had_one = False

    def next(self) -> pa.RecordBatch | None:
        self._had_one = not self._had_one
        return self._reader.next() if self._had_one else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def first_key_from(stored: Json) -> int:
    return keys_of(first_batch(stored))[0]


def first_batch(*stored: Json) -> pa.RecordBatch:
    batch = DirectReader(
        source=ListSource(SPLITS),
        restored=stored,
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    ).next()
    assert batch is not None
    return batch


def test_event_time_marks_keep_their_place_after_the_records_before_them() -> None:
    reader, plain = reader_from(None), plain_reader()
    handed_out: list[object] = []
    expected: list[object] = []
    number = 0

    while not plain.is_exhausted:
        batch = plain.next()
        expected += [] if batch is None else keys_of(batch)
        expected += plain.take_marks()
    while not reader.is_exhausted:
        batch = reader.next()
        handed_out += [] if batch is None else keys_of(batch)
        handed_out += reader.take_marks()
        number += 1
        reader.reserved(CheckpointId(number))
        reader.on_completed(CheckpointId(number))

    assert handed_out == expected


def plain_reader() -> DirectReader:
    return DirectReader(
        source=ListSource(SPLITS),
        restored=(),
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )
