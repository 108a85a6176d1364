"""The runs that a gate gives out: it joins batches and never changes the order."""

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from pipelines.channels import coalescing as coalescing_module
from pipelines.channels.channel import InputGate
from pipelines.channels.coalescing import Coalescing, InputOfChannel, Run
from pipelines.channels.gate import Gate, Inlet
from pipelines.domain.elements import (
    Barrier,
    CancelCheckpoint,
    Element,
    EndOfInput,
    Mark,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId, CheckpointId, Uid
from pipelines.domain.origins import MOST_ORIGINS, Origins, RecordOrigin
from tests.unit.runtime.fakes import EVENT_TIME, ManualClock

A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")
SAME = {A: InputOfChannel(0, "at"), B: InputOfChannel(0, "at")}
OTHER_SCHEMA = Records(pa.record_batch({"n": [1]}))


def test_batches_queued_on_all_channels_of_an_input_form_one_batch() -> None:
    gate, inlets = opened(SAME)
    offer(inlets[A], at(1, 2), at(3))
    offer(inlets[B], at(4))

    assert run_of(gate) == ([1, 2, 3, 4], {})
    assert gate.poll_run() is None


def test_channels_take_turns_when_one_alone_fills_a_run() -> None:
    gate, inlets = opened(SAME, max_rows=2)
    offer(inlets[A], at(1), at(2), at(3))
    offer(inlets[B], at(4), at(5))

    assert [run_of(gate)[0] for _ in range(3)] == [[1, 2], [4, 5], [3]]


def test_a_run_has_bounded_rows_and_a_larger_batch_goes_alone() -> None:
    gate, inlets = opened({A: InputOfChannel(0)}, max_rows=4)
    offer(inlets[A], at(1), at(2, 3), at(4, 5), at(*range(6, 13)), at(13))

    runs = [run_of(gate)[0] for _ in range(4)]

    assert runs == [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], [13]]


def test_a_large_batch_passes_uncopied_and_without_reading_the_clock() -> None:
    gate, inlets = opened(SAME, max_rows=2, wait_ms=5)
    large = at(1, 2)
    offer(inlets[A], large, Watermark(1), at(3))
    gate.measure_by(BrokenClock())

    run = gate.poll_run()

    assert isinstance(run, Run)
    assert run.batch() is large.batch
    assert run.watermarks == {A: 1}, "what follows it directly takes no turn of its own"


@pytest.mark.parametrize(
    "mark",
    [Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0), WatermarkStatus(is_idle=True)],
    ids=["barrier", "status"],
)
def test_a_large_batch_takes_along_no_mark_other_than_watermarks(mark: Mark) -> None:
    gate, inlets = opened(SAME, max_rows=2)
    offer(inlets[A], at(1, 2), mark, Watermark(1))

    run = gate.poll_run()

    assert isinstance(run, Run)
    assert not run.watermarks
    assert gate.poll_run() == (A, mark)


def test_batches_of_different_inputs_are_never_joined() -> None:
    gate, inlets = opened({A: InputOfChannel(0), B: InputOfChannel(1), C: InputOfChannel(0)})
    for number, inlet in enumerate(inlets.values()):
        offer(inlet, at(number))

    first, second = gate.poll_run(), gate.poll_run()

    assert isinstance(first, Run)
    assert isinstance(second, Run)
    assert (first.port, times_of(first.batch())) == (0, [0, 2])
    assert (second.port, times_of(second.batch())) == (1, [1])


@pytest.mark.parametrize(
    "mark",
    [
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0),
        CancelCheckpoint(CheckpointId(1)),
        WatermarkStatus(is_idle=True),
        EndOfInput(),
    ],
)
def test_a_mark_other_than_a_watermark_ends_a_run(mark: Element) -> None:
    gate, inlets = opened({A: InputOfChannel(0)})
    offer(inlets[A], at(1), mark, at(2))

    assert run_of(gate) == ([1], {})
    assert gate.poll_run() == (A, mark)
    assert run_of(gate) == ([2], {})


def test_a_run_carries_only_the_newest_watermark_of_each_channel() -> None:
    gate, inlets = opened(SAME)
    offer(inlets[A], at(1), Watermark(0), at(3), Watermark(2))
    offer(inlets[B], at(1), Watermark(0))

    assert run_of(gate) == ([1, 3, 1], {A: 2, B: 0})
    assert gate.poll_run() is None


def test_a_late_record_stays_behind_the_watermark_that_made_it_late() -> None:
    gate, inlets = opened(SAME)
    offer(inlets[A], at(5), Watermark(4), at(6, 4), Watermark(5), at(9))

    assert run_of(gate) == ([5], {A: 4})
    assert run_of(gate) == ([6, 4, 9], {A: 5})


def test_a_channel_without_event_time_has_no_late_records() -> None:
    gate, inlets = opened({A: InputOfChannel(0)})
    offer(inlets[A], at(5), Watermark(4), at(3))

    assert run_of(gate) == ([5, 3], {A: 4})


def test_a_record_without_a_time_is_never_late() -> None:
    gate, inlets = opened(SAME)
    offer(inlets[A], at(5), Watermark(4), at(None), at(None, 5))

    assert run_of(gate) == ([5, None, None, 5], {A: 4})


def test_batches_with_different_columns_are_not_joined() -> None:
    gate, inlets = opened({A: InputOfChannel(0)})
    offer(inlets[A], at(1), OTHER_SCHEMA, OTHER_SCHEMA)

    first, second = gate.poll_run(), gate.poll_run()

    assert isinstance(first, Run)
    assert isinstance(second, Run)
    assert first.batch().schema.names == ["at"]
    assert second.batch().column("n").to_pylist() == [1, 1]


def test_columns_with_different_dictionaries_are_joined() -> None:
    gate, inlets = opened({A: InputOfChannel(0)})
    batches = [
        pa.record_batch({"c": pa.array(texts).dictionary_encode()})
        for texts in (["x", "y"], ["z", "x", None])
    ]
    offer(inlets[A], *(Records(batch) for batch in batches))

    run = gate.poll_run()

    assert isinstance(run, Run)
    run.batch().validate(full=True)
    assert run.batch().column("c").to_pylist() == ["x", "y", "z", "x", None]


def test_batches_that_must_stand_alone_are_not_joined() -> None:
    def is_suspect(origins: Origins) -> bool:
        return any(origin.first_offset in (2, 3) for origin in origins)

    gate, inlets = opened({A: InputOfChannel(0)}, stands_alone=is_suspect)
    offer(inlets[A], *(Records(at(n).batch, (origin(n),)) for n in range(6)))

    assert [run_of(gate)[0] for _ in range(4)] == [[0, 1], [2], [3], [4, 5]]


def test_a_run_comes_from_a_bounded_number_of_splits() -> None:
    gate, inlets = opened({A: InputOfChannel(0)})
    for n in range(MOST_ORIGINS):
        offer(inlets[A], Records(at(n).batch, (origin(n, f"split-{n}"),)))
    offer(inlets[A], Records(at(1_000).batch, (origin(1_000, "split-0"),)))
    offer(inlets[A], Records(at(1_001).batch, (origin(0, "another"),)))

    assert len(run_of(gate)[0]) == MOST_ORIGINS + 1
    assert run_of(gate)[0] == [1_001]


@pytest.mark.parametrize("bound", ["MAX_COALESCED_BATCHES", "MAX_COALESCED_BYTES"])
def test_a_run_has_a_bounded_number_of_batches_and_bytes(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing_module, bound, 3)
    gate, inlets = opened({A: InputOfChannel(0)})
    offer(inlets[A], *(at(n) for n in range(4)))

    assert [run_of(gate)[0] for _ in range(2)] == [[0, 1, 2], [3]]


def test_a_channel_that_is_held_back_gives_nothing_to_a_run() -> None:
    gate, inlets = opened(SAME)
    gate.hold_back(B)
    offer(inlets[A], at(1))
    offer(inlets[B], at(2))

    assert run_of(gate) == ([1], {})
    assert gate.poll_run() is None
    gate.resume(B)
    assert run_of(gate) == ([2], {})


def test_batches_taken_into_a_run_return_their_credit() -> None:
    gate = Gate([A, B], capacity_bytes=40)
    gate.coalesce(Coalescing(SAME, 100))
    returned: dict[ChannelId, list[int]] = {A: [], B: []}
    for channel, given in returned.items():
        inlet = gate.attach(channel, return_credit=given.append, on_close=lambda reason: None)
        for n in range(3):
            inlet.offer(at(n), 10)

    gate.poll_run()

    assert returned == {A: [30], B: [30]}


def test_polling_a_run_requires_rules_for_joining_batches() -> None:
    gate = Gate([A])
    inlet = gate.attach(A, return_credit=lambda count: None, on_close=lambda reason: None)
    inlet.offer(at(1), 1)

    with pytest.raises(InvariantViolated, match="rules for joining batches are set"):
        gate.poll_run()


class Waiting:
    """A gate that waits up to 5 ms for 3 rows, and counts how often it woke its reader."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.gate, self.inlets = opened(SAME, max_rows=3, wait_ms=5)
        self.gate.measure_by(self.clock)
        self.wakes = 0
        self.gate.on_available(self._on_wake)

    def _on_wake(self) -> None:
        self.wakes += 1


def test_a_reader_waits_a_few_milliseconds_for_more_rows() -> None:
    waiting = Waiting()
    offer(waiting.inlets[A], at(1))
    begun_ms = waiting.clock.now_ms

    assert waiting.gate.poll_run() is None
    assert waiting.gate.due_ms == begun_ms + 5
    waiting.clock.now_ms += 4.9
    offer(waiting.inlets[B], at(2))
    assert waiting.gate.poll_run() is None
    waiting.clock.now_ms += 0.1

    assert run_of(waiting.gate) == ([1, 2], {})
    assert waiting.gate.due_ms is None


def test_rows_that_waited_while_the_reader_was_busy_are_given_out_at_once() -> None:
    waiting = Waiting()
    offer(waiting.inlets[A], at(1))
    waiting.clock.now_ms += 6

    assert run_of(waiting.gate) == ([1], {})


def _enough_rows(waiting: Waiting) -> None:
    offer(waiting.inlets[B], at(2, 3))


def _a_barrier(waiting: Waiting) -> None:
    offer(waiting.inlets[B], Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))


def _an_end(waiting: Waiting) -> None:
    offer(waiting.inlets[B], EndOfInput())


def _a_full_channel(waiting: Waiting) -> None:
    waiting.inlets[B].offer(at(2), 8 << 20)


@pytest.mark.parametrize("reason", [_enough_rows, _a_barrier, _an_end, _a_full_channel])
def test_enough_rows_a_mark_or_a_full_channel_ends_the_wait_for_rows(
    reason: Callable[[Waiting], None],
) -> None:
    waiting = Waiting()
    offer(waiting.inlets[A], at(1))
    assert waiting.gate.poll_run() is None
    woken_before = waiting.wakes

    reason(waiting)

    assert waiting.wakes == woken_before + 1, "the reader sleeps until the wait would be over"
    assert waiting.gate.poll_run() is not None


def test_rows_do_not_wait_for_more_while_a_checkpoint_aligns() -> None:
    waiting = Waiting()
    waiting.gate.hold_back(B)
    offer(waiting.inlets[A], at(1))

    assert run_of(waiting.gate) == ([1], {})


@pytest.mark.parametrize("seed", range(60))
def test_every_channel_stays_in_order_and_no_mark_passes_what_it_must_follow(seed: int) -> None:
    rng = random.Random(seed)
    inputs = {
        channel: InputOfChannel(rng.randint(0, 1), rng.choice(["at", None]))
        for channel in (A, B, C)
    }
    gate, inlets = opened(inputs, max_rows=rng.choice([1, 3, 10, 10_000]))
    streams = {channel: random_stream(rng) for channel in inputs}
    unsent = {channel: list(stream) for channel, stream in streams.items()}
    received: dict[ChannelId, list[Element]] = {channel: [] for channel in inputs}

    while any(unsent.values()):
        channel = rng.choice([c for c in inputs if unsent[c]])
        offer(inlets[channel], unsent[channel].pop(0))
        if rng.random() < 0.3:
            take_one(gate, received)
    while take_one(gate, received):
        continue

    for channel, stream in streams.items():
        assert without_watermarks(received[channel]) == without_watermarks(stream)
        for number, element in enumerate(received[channel]):
            if isinstance(element, Watermark):
                assert element.timestamp_ms <= newest_before(stream, received[channel][:number])
        assert at_barriers(received[channel]) == at_barriers(stream)
        if inputs[channel].time_column:
            assert late_rows(received[channel]) == late_rows(stream)


def take_one(gate: Gate, received: dict[ChannelId, list[Element]]) -> bool:
    """Polls once and sorts the elements by channel, which a row's origin names. False if none."""
    match gate.poll_run():
        case None:
            return False
        case Run() as run:
            for records in run.records:
                received[ChannelId(records.origins[0].source)].append(records)
            for channel, timestamp_ms in run.watermarks.items():
                received[channel].append(Watermark(timestamp_ms))
        case (channel, mark):
            received[channel].append(mark)
    return True


def random_stream(rng: random.Random) -> list[Element]:
    """Returns a stream with growing watermarks, barriers, and records that are late at times."""
    elements: list[Element] = []
    now = 0
    for number in range(rng.randint(0, 40)):
        now += rng.randint(0, 3)
        times = [now + rng.randint(-4, 4) for _ in range(rng.randint(1, 4))]
        barrier = Barrier(checkpoint_id=CheckpointId(number + 1), trigger_ms=0)
        elements.append(rng.choice([at(*times), at(*times), Watermark(now), barrier]))
    return elements


def without_watermarks(stream: list[Element]) -> list[Element]:
    return [
        Records(element.batch) if isinstance(element, Records) else element
        for element in stream
        if not isinstance(element, Watermark)
    ]


def newest_before(stream: list[Element], before: list[Element]) -> int:
    """Returns the stream's newest watermark before the first element that is not in `before`."""
    left = len(without_watermarks(before))
    newest_ms = 0
    for element in stream:
        if isinstance(element, Watermark):
            newest_ms = element.timestamp_ms
        elif left == 0:
            break
        else:
            left -= 1
    return newest_ms


def at_barriers(stream: list[Element]) -> list[int]:
    """Returns the event time at each barrier and at the end."""
    watermark_ms, found = 0, []
    for element in stream:
        if isinstance(element, Watermark):
            watermark_ms = element.timestamp_ms
        elif isinstance(element, Barrier):
            found.append(watermark_ms)
    return [*found, watermark_ms]


def late_rows(stream: list[Element]) -> list[int]:
    """Returns the times that are at or below an earlier watermark."""
    watermark_ms, late = -1_000, []
    for element in stream:
        if isinstance(element, Watermark):
            watermark_ms = max(watermark_ms, element.timestamp_ms)
        elif isinstance(element, Records):
            late += [t for t in times_of(element.batch) if t is not None and t <= watermark_ms]
    return late


class BrokenClock(ManualClock):
    def monotonic_ms(self) -> float:
        raise AssertionError("the time does not matter")


def opened(
    inputs: dict[ChannelId, InputOfChannel],
    max_rows: int = 10_000,
    wait_ms: float = 0.0,
    stands_alone: Callable[[Origins], bool] = lambda origins: False,
) -> tuple[Gate, dict[ChannelId, Inlet]]:
    gate = Gate(list(inputs))
    gate.coalesce(Coalescing(inputs, max_rows, wait_ms, stands_alone))
    inlets = {
        channel: gate.attach(channel, return_credit=lambda n: None, on_close=lambda reason: None)
        for channel in inputs
    }
    return gate, inlets


def offer(inlet: Inlet, *elements: Element) -> None:
    for element in elements:
        named = element
        if isinstance(element, Records) and not element.origins:
            named = Records(element.batch, (origin(0, source=inlet.channel),))
        inlet.offer(named, int(isinstance(element, Records)))


def run_of(gate: InputGate) -> tuple[list[int | None], dict[ChannelId, int]]:
    run = gate.poll_run()
    assert isinstance(run, Run)
    return times_of(run.batch()), run.watermarks


def at(*times_ms: int | None) -> Records:
    return Records(pa.record_batch({"at": pa.array(times_ms, pa.int64()).view(EVENT_TIME)}))


def times_of(batch: pa.RecordBatch) -> list[int | None]:
    times: list[int | None] = batch.column("at").view(pa.int64()).to_pylist()
    return times


def origin(offset: int, split: str = "a", source: str = "events") -> RecordOrigin:
    return RecordOrigin(
        source=Uid(source), subtask=0, split=split, first_offset=offset, last_offset=offset
    )
