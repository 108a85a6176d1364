"""A batch that would take too long is handled in pieces, with the same result."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.elements import Barrier, Records, Watermark
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origins import Part, RecordOrigin
from pipelines.domain.settings import BarrierOptions
from pipelines.runtime.subtask import work_pieces
from pipelines.runtime.subtask.feed import Process
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from pipelines.runtime.subtask.work_pieces import LEAST_ROWS, WorkPieces, parts_within
from tests.unit.runtime.fakes import ManualClock, batch_of, keys_of
from tests.unit.runtime.hosted import (
    ALIGNED,
    LEFT,
    OVERTAKING,
    RIGHT,
    JoiningSubtask,
    Remembering,
)

SIDES = (LEFT, RIGHT)
LONGEST_MS = 50.0
ROWS = 8_192


def handle(
    pieces: WorkPieces, clock: ManualClock, rows: int, ms_per_row: float, port: int = 0
) -> list[float]:
    """Returns the time that the reader works on each piece of a batch, in ms."""
    times_ms = []
    for piece in pieces.of(Process(port, rows_of(rows))):
        pieces.begin(piece)
        times_ms.append(piece.batch.num_rows * ms_per_row)
        clock.now_ms += times_ms[-1]
        pieces.end()
    return times_ms


def test_after_the_first_batch_no_piece_exceeds_the_longest_time() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)

    first = handle(pieces, clock, ROWS, 0.02)
    later = [handle(pieces, clock, ROWS, 0.02) for _ in range(3)]

    assert len(first) == 1
    assert max(ms for times in later for ms in times) <= LONGEST_MS
    assert max(len(times) for times in later) <= 8


def test_an_input_whose_rows_cost_more_is_cut_by_its_own_cost() -> None:
    """The other input of the join brings many cheap rows."""
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    dear: list[float] = []
    cheap: list[int] = []
    for _ in range(5):
        cheap += [len(handle(pieces, clock, ROWS, 0.001, port=0)) for _ in range(4)]
        dear += handle(pieces, clock, ROWS, 0.02, port=1)

    assert max(dear[1:]) <= LONGEST_MS
    assert set(cheap) == {1}


def test_an_empty_batch_does_not_change_the_estimated_cost() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    handle(pieces, clock, 0, 0.0)

    assert [len(handle(pieces, clock, ROWS, 0.001)) for _ in range(2)] == [1, 1]


def test_a_batch_that_is_handled_in_time_stays_whole() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)

    assert [len(handle(pieces, clock, ROWS, 0.001)) for _ in range(5)] == [1] * 5


def test_a_piece_has_a_minimum_number_of_rows_however_slow_they_are() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    handle(pieces, clock, ROWS, 10.0)

    sizes = [p.batch.num_rows for p in pieces.of(Process(0, rows_of(ROWS)))]

    assert set(sizes) == {LEAST_ROWS}
    assert sum(sizes) == ROWS


def test_one_slow_batch_is_soon_forgotten() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    handle(pieces, clock, ROWS, 0.05)

    counts = [len(handle(pieces, clock, ROWS, 0.001)) for _ in range(4)]

    assert counts[0] > 1
    assert counts[-1] == 1


def test_costly_small_batches_cut_a_large_batch_only_briefly() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    for _ in range(1_000):
        handle(pieces, clock, 1, 1.0)

    counts = [len(handle(pieces, clock, ROWS, 0.001)) for _ in range(2)]

    assert counts[1] == 1


def test_without_a_longest_time_every_batch_is_whole() -> None:
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, 0)

    assert [len(handle(pieces, clock, ROWS, 10.0)) for _ in range(3)] == [1] * 3


@pytest.mark.parametrize("seed", range(20))
def test_pieces_add_up_to_the_batch_and_each_row_keeps_its_origin(seed: int) -> None:
    chance = random.Random(seed)
    parts: list[Part] = [
        ((origin(number),), chance.randint(1, 2_000)) for number in range(chance.randint(1, 9))
    ]
    rows = sum(count for _, count in parts)
    clock = ManualClock()
    pieces = WorkPieces(clock.monotonic_ms, LONGEST_MS)
    handle(pieces, clock, ROWS, chance.uniform(0.001, 1.0))

    found = list(pieces.of(Process(1, rows_of(rows), parts)))

    assert [key for piece in found for key in keys_of(piece.batch)] == list(range(rows))
    assert {piece.port for piece in found} == {1}
    by_row = [origins for origins, count in parts for _ in range(count)]
    cut = [o for piece in found for origins, count in piece.parts for o in [origins] * count]
    assert cut == by_row
    for piece in found:
        assert sum(count for _, count in piece.parts) == piece.batch.num_rows


def test_parts_outside_the_requested_rows_are_left_out() -> None:
    parts: list[Part] = [((origin(n),), 10) for n in range(3)]

    assert parts_within(parts, 10, 10) == [parts[1]]
    assert parts_within(parts, 5, 10) == [((origin(0),), 5), ((origin(1),), 5)]


@pytest.mark.parametrize("options", [ALIGNED, OVERTAKING])
@pytest.mark.parametrize("seed", range(15))
def test_a_snapshot_never_separates_the_pieces_of_a_batch(
    seed: int, options: BarrierOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is in the state, in flight, or behind the barrier; so is event time."""
    monkeypatch.setattr(work_pieces, "LEAST_ROWS", 1)
    chance, clock = random.Random(seed), ManualClock()
    host = JoiningSubtask(
        tmp_path,
        clock=clock,
        options=options,
        operator=lambda: Slow(clock),
        coalesced_rows=chance.choice([1, 100]),
        longest_work_ms=LONGEST_MS,
    )
    before = sent(host, chance, range(100))
    barrier = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, overtakes=options is OVERTAKING)
    for side in SIDES:
        host.inputs[side].send(barrier)
        for _ in range(chance.randint(0, 3)):
            host.step()
    behind = sent(host, chance, range(100, 200))
    host.consume()

    in_flight = [key for keys in host.in_flight_at(1).values() for key in keys]
    assert sorted(host.seen_at(1) + in_flight) == before
    assert sorted(host.sink.written) == [*before, *behind]
    assert Slow.largest <= 2, "of rows that take 20 ms each"


def test_mail_is_handled_between_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_pieces, "LEAST_ROWS", 1)
    clock = ManualClock()
    host = JoiningSubtask(
        tmp_path, clock=clock, operator=lambda: Slow(clock), longest_work_ms=LONGEST_MS
    )
    host.inputs[LEFT].send(Records(rows_of(2)))
    host.inputs[LEFT].send(Records(rows_of(6, begin=2)))
    for side in SIDES:
        host.inputs[side].send(Watermark(8))
    while len(host.sink.written) < 4:
        host.subtask.step()

    host.mailbox.post(CheckpointAborted(CheckpointId(7)))
    host.subtask.step()

    assert host.mailbox.try_take() is None, "it was handled"
    assert host.sink.written == [0, 1, 2, 3], "in the midst of the batch"
    assert host.subtask.watermark_ms() is None, "event time waits for the rest of it"
    host.consume()
    assert host.sink.written == list(range(8))
    assert host.subtask.watermark_ms() == 8


class Slow(Remembering):
    """An operator that takes 20 ms for each row."""

    largest = 0

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._handled = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        super().on_batch(port, batch)
        self._clock.now_ms += 20.0 * batch.num_rows
        self._handled += 1
        Slow.largest = batch.num_rows if self._handled == 2 else max(Slow.largest, batch.num_rows)


def sent(host: JoiningSubtask, chance: random.Random, keys: range) -> list[int]:
    """Sends the keys to both channels at random, in batches of one to nine rows. Returns them."""
    key = keys.start
    while key < keys.stop:
        rows = min(chance.randint(1, 9), keys.stop - key)
        host.inputs[chance.choice(SIDES)].send(Records(rows_of(rows, begin=key)))
        key += rows
        for _ in range(chance.choice([0, 0, 1, 2])):
            host.step()
    return list(keys)


def rows_of(count: int, *, begin: int = 0) -> pa.RecordBatch:
    return batch_of([(key, key) for key in range(begin, begin + count)])


def origin(number: int) -> RecordOrigin:
    return RecordOrigin(
        source=Uid("source"), subtask=0, split=str(number), first_offset=0, last_offset=9
    )
