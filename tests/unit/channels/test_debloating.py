"""A channel may hold what its reader consumes in the target time, within fixed bounds."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from pipelines.channels.coalescing import Coalescing, InputOfChannel, Run
from pipelines.channels.credit import (
    INITIAL_WINDOW_BYTES,
    MIN_WINDOW_BYTES,
    ROUND_TRIPS_MS,
    Debloater,
    Debloating,
    cost_of,
)
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.domain.elements import Barrier, EndOfInput, Records, Watermark
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import ChannelId, CheckpointId
from tests.unit.runtime.fakes import ManualClock

CAPACITY_BYTES = 8 << 20
HALF_A_SECOND = Debloating(target_ms=500.0)
EVERY_BATCH = Debloating(target_ms=500.0, period_ms=0.001, samples=10**6, threshold_percent=0)
A, B = ChannelId("a"), ChannelId("b")

Cost = Callable[[int], float]
"""Maps the size of a batch in bytes to the time it takes in ms."""


@pytest.mark.parametrize("channels", [1, 2, 16])
@pytest.mark.parametrize("bytes_per_ms", [0.5, 10.0, 1_000.0, 100_000.0])
@pytest.mark.parametrize("seed", range(10))
def test_queued_data_of_all_channels_is_consumed_in_about_the_target_time(
    seed: int, bytes_per_ms: float, channels: int
) -> None:
    rng = random.Random(seed)
    work = worked(channels, lambda size: size / bytes_per_ms * rng.uniform(0.5, 1.5))

    work.go_on(rng, ms=20_000)

    window_ms = work.window_bytes / bytes_per_ms
    is_bounded = work.window_bytes in (MIN_WINDOW_BYTES, CAPACITY_BYTES)
    aimed_ms = max(500 / channels, ROUND_TRIPS_MS)
    assert is_bounded or 0.6 * aimed_ms < window_ms < 1.7 * aimed_ms, (seed, window_ms)
    if window_ms < 0.6 * aimed_ms:
        assert work.window_bytes == CAPACITY_BYTES, seed
    if window_ms > 1.7 * aimed_ms:
        assert work.window_bytes == MIN_WINDOW_BYTES, seed


@pytest.mark.parametrize("seed", range(50))
def test_the_window_stays_within_its_bounds_for_any_measurement(seed: int) -> None:
    rng = random.Random(seed)
    capacity_bytes = rng.choice([1, 500, MIN_WINDOW_BYTES, 20_000, CAPACITY_BYTES])
    machine = debloater(rng.randint(1, 300), capacity_bytes, joins=rng.random() < 0.5)
    now_ms = 0.0

    for _ in range(500):
        took_ms = rng.choice([0.0, 1e-6, 1.0, 1e4, 1e9, -1.0])
        now_ms += rng.choice([0.0, 1.0, 1e4])
        machine.on_consumed(rng.choice([1, 300, 10**6, 10**12]), took_ms, now_ms)

        least_bytes = min(MIN_WINDOW_BYTES, capacity_bytes)
        assert least_bytes <= machine.window_bytes <= capacity_bytes, seed


def test_the_window_is_small_before_the_first_measurement() -> None:
    assert debloater(4).window_bytes == INITIAL_WINDOW_BYTES
    assert debloater(4, capacity_bytes=10).window_bytes == 10


def test_the_first_measurement_counts_at_once() -> None:
    machine = debloater(1)

    machine.on_consumed(1_000, 1.0, now_ms=0.0)

    assert machine.window_bytes == 500_000


def test_the_window_shrinks_within_seconds_of_a_sudden_slow_down() -> None:
    rng = random.Random(1)
    cost = Changing(1_000.0)
    work = worked(2, cost)
    work.go_on(rng, ms=10_000)
    before_bytes = work.window_bytes

    cost.bytes_per_ms = 10.0
    work.go_on(rng, ms=5_000)

    assert work.window_bytes < before_bytes / 20
    assert work.window_bytes / 10.0 < 2 * 250.0


def test_the_window_grows_again_when_the_reader_speeds_up() -> None:
    rng = random.Random(1)
    cost = Changing(10.0)
    work = worked(2, cost)
    work.go_on(rng, ms=10_000)

    cost.bytes_per_ms = 1_000.0
    work.go_on(rng, ms=10_000)

    assert work.window_bytes > 200_000


def test_a_fast_reader_gets_the_whole_capacity() -> None:
    work = worked(8, lambda size: size / 1e6)

    work.go_on(random.Random(1), ms=1_000)

    assert work.window_bytes == CAPACITY_BYTES


def test_a_window_lasts_two_round_trips_even_with_many_channels() -> None:
    machine = debloater(1_000)

    machine.on_consumed(10_000, 1.0, now_ms=0.0)

    assert machine.window_bytes == ROUND_TRIPS_MS * 10_000


def test_the_window_changes_at_most_once_per_period() -> None:
    machine = debloater(1)
    machine.on_consumed(1_000, 1.0, now_ms=0.0)

    machine.on_consumed(100_000, 1.0, now_ms=199.0)
    before_bytes = machine.window_bytes
    machine.on_consumed(100_000, 1.0, now_ms=200.0)

    assert before_bytes == 500_000
    assert machine.window_bytes > before_bytes


@pytest.mark.parametrize(
    ("change", "is_told"), [(1.2, False), (0.8, False), (1.3, True), (0.7, True)]
)
def test_the_window_ignores_small_changes(change: float, is_told: bool) -> None:
    machine = debloater(1, forgets_at_once=True)
    machine.on_consumed(100_000, 1_000.0, now_ms=0.0)

    machine.on_consumed(round(100_000 * change), 1_000.0, now_ms=1_000.0)

    assert (machine.window_bytes != 50_000) is is_told


def test_the_window_reaches_its_bounds_even_by_a_small_change() -> None:
    machine = debloater(1, capacity_bytes=55_000, forgets_at_once=True)
    machine.on_consumed(100_000, 1_000.0, now_ms=0.0)

    machine.on_consumed(112_000, 1_000.0, now_ms=1_000.0)

    assert machine.window_bytes == 55_000


def test_a_fixed_cost_per_batch_does_not_shrink_batches_ever_further() -> None:
    """A call to a service takes a second for any number of rows, so smaller batches do not help."""
    work = worked(2, lambda size: 1_000.0)

    work.go_on(random.Random(1), ms=120_000)

    assert work.window_bytes > INITIAL_WINDOW_BYTES


def test_the_estimated_fixed_cost_of_a_batch_is_bounded() -> None:
    rng = random.Random(1)
    machine = debloater(1)
    now_ms = 0.0
    for _ in range(1_000):
        now_ms += 1_000.0
        machine.on_consumed(rng.randint(100_000, 1_900_000), 1_000.0, now_ms)

    assert 1_000_000 < machine.window_bytes < 3_000_000  # 4 times half an average batch


def test_without_joining_each_batch_counts_with_its_full_cost() -> None:
    rng = random.Random(1)
    machine = debloater(1, joins=False)
    now_ms = 0.0
    for _ in range(1_000):
        now_ms += 10.0
        machine.on_consumed(rng.randint(100, 1_900), 10.0, now_ms)

    assert 35_000 < machine.window_bytes < 65_000  # 50 batches of 1,000 bytes on average


def test_the_time_to_drain_the_queue_is_known_after_the_first_measurement() -> None:
    machine = debloater(1)
    assert machine.consumed_in_ms(1_000) is None

    machine.on_consumed(100, 10.0, now_ms=0.0)

    assert machine.consumed_in_ms(1_000) == 100.0


@pytest.mark.parametrize("seed", range(30))
def test_a_channel_delivers_everything_in_order_while_its_window_changes(seed: int) -> None:
    """No credit is lost or given twice, so the writer never stops for good."""
    rng = random.Random(seed)
    host = Measured(rng.choice([1, 700, 5_000, CAPACITY_BYTES]), rng)
    sent = list(range(300))

    received = host.run([numbers(*[n] * rng.randint(1, 30)) for n in sent])

    assert list(dict.fromkeys(received)) == sent, seed
    assert host.output.flush()


def test_little_is_queued_in_front_of_a_slow_reader() -> None:
    """The batches that it consumes in the target time, one on its way, and the one in work."""
    host = Measured(CAPACITY_BYTES, random.Random(1), ms_of_row=100.0)
    element = numbers(1)

    host.run([element] * 500)

    most = 5 + 2
    assert max(host.seen_bytes[-300:]) <= most * cost_of(element)


def test_a_writer_may_not_fill_more_than_the_window() -> None:
    gate = Gate([A], CAPACITY_BYTES, HALF_A_SECOND)
    inlet = gate.attach(A, return_credit=lambda count: None, on_close=lambda reason: None)
    inlet.offer(numbers(1), INITIAL_WINDOW_BYTES)

    with pytest.raises(ProtocolError, match="overrun its credit"):
        inlet.offer(numbers(2), 1)


def test_without_a_target_the_channel_is_filled_to_its_capacity() -> None:
    gate, output = Gate([A], 50_000), LocalOutput(A)
    output.on_gate(gate)

    while output.flush():
        output.send(numbers(1))

    assert 50_000 <= gate.statistics()[0].queued_bytes < 51_000


def test_idle_time_does_not_count_as_time_of_the_records() -> None:
    gate, output, clock = measured_gate()
    for _ in range(3):
        output.send(numbers(1))
        assert isinstance(gate.poll_run(), Run)
        clock.now_ms += 10
        assert gate.poll_run() is None
        clock.now_ms += 60_000

    assert gate.statistics()[0].window_bytes == 50 * cost_of(numbers(1))


def test_time_of_marks_counts_with_the_records_after_them() -> None:
    gate, output, clock = measured_gate()
    output.send(numbers(1))
    assert isinstance(gate.poll_run(), Run)
    clock.now_ms += 1
    output.send(Watermark(1))
    output.send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))
    for _ in range(2):
        assert not isinstance(gate.poll_run(), Run)
        clock.now_ms += 1_000
    output.send(numbers(1))
    assert isinstance(gate.poll_run(), Run)
    clock.now_ms += 1

    assert gate.poll_run() is None

    assert gate.statistics()[0].window_bytes < 2 * MIN_WINDOW_BYTES


def test_each_input_of_an_operator_has_a_window_for_its_own_cost() -> None:
    """The two sides of a join differ in cost.

    With an average of both, the expensive side would hold more than is consumed in the target
    time, and the cheap side less.
    """
    gate, clock = Gate([A, B], CAPACITY_BYTES, EVERY_BATCH), ManualClock()
    gate.measure_by(clock)
    gate.coalesce(Coalescing({A: InputOfChannel(0), B: InputOfChannel(1)}, 64))
    outputs = [LocalOutput(channel) for channel in (A, B)]
    for output in outputs:
        output.on_gate(gate)
    ms_of_batch = {0: 64, 1: 4}
    batch = numbers(*range(64))

    for _ in range(2_000):
        for output in outputs:
            if output.flush():
                output.send(batch)
        match gate.poll_run():
            case Run() as run:
                assert run.rows == 64
                clock.now_ms += ms_of_batch[run.port]

    for port, channel in enumerate(gate.statistics()):
        window_ms = channel.window_bytes / cost_of(batch) * ms_of_batch[port]
        assert 0.8 * 500 / 2 < window_ms < 1.2 * 500 / 2


def test_batches_consumed_in_negligible_time_are_measured_together() -> None:
    gate, output, clock = measured_gate()
    for _ in range(5):
        assert gate.statistics()[0].window_bytes == INITIAL_WINDOW_BYTES
        output.send(numbers(1))
        assert isinstance(gate.poll_run(), Run)
        clock.now_ms += 1

    assert gate.poll_run() is None

    assert gate.statistics()[0].window_bytes == 500 * cost_of(numbers(1))


def test_a_held_back_channel_gives_out_nothing_and_loses_nothing() -> None:
    gate, output, clock = measured_gate()
    sent = 0
    while output.flush():
        output.send(numbers(1))
        sent += 1
    gate.hold_back(A)

    assert gate.poll_run() is None
    assert not output.flush()  # no credit has come back
    gate.resume(A)
    received = 0
    while (run := gate.poll_run()) is not None:
        assert isinstance(run, Run)
        received += run.rows
        clock.now_ms += 1
    assert received == sent
    assert output.flush()


@dataclass(slots=True)
class Changing:
    bytes_per_ms: float

    def __call__(self, size_bytes: int) -> float:
        return size_bytes / self.bytes_per_ms


@dataclass(slots=True)
class Worked:
    """A reader that takes all that its channels hold in one batch."""

    machine: Debloater
    cost: Cost
    channels: int
    now_ms: float = 0.0

    @property
    def window_bytes(self) -> int:
        return self.machine.window_bytes

    def go_on(self, rng: random.Random, ms: float) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            size_bytes = max(1, round(self.channels * self.window_bytes * rng.uniform(0.3, 1.0)))
            took_ms = self.cost(size_bytes)
            self.now_ms += took_ms + rng.choice([0.0, 0.0, 5.0])
            self.machine.on_consumed(size_bytes, took_ms, self.now_ms)


class Measured:
    """One writer and one reader of a local channel, in turn; the reader's speed changes."""

    def __init__(
        self, capacity_bytes: int, rng: random.Random, ms_of_row: float | None = None
    ) -> None:
        self.clock, self._rng, self._ms_of_row = ManualClock(), rng, ms_of_row
        debloating = HALF_A_SECOND if ms_of_row else EVERY_BATCH
        self.gate = Gate([A], capacity_bytes, debloating)
        self.gate.measure_by(self.clock)
        rows = 1 if ms_of_row else rng.choice([1, 50, 8_192])
        self.gate.coalesce(Coalescing({A: InputOfChannel(0)}, rows))
        self.output = LocalOutput(A)
        self.output.on_gate(self.gate)
        self.seen_bytes: list[int] = []

    def run(self, elements: list[Records]) -> list[int]:
        received: list[int] = []
        waiting = iter([*elements, EndOfInput()])
        for _ in range(100 * len(elements)):
            self._write(waiting)
            self.seen_bytes.append(self.gate.statistics()[0].queued_bytes)
            match self.gate.poll_run():
                case None:
                    self.clock.now_ms += self._rng.choice([0, 50])
                case Run() as run:
                    received += run.batch().column(0).to_pylist()
                    self.clock.now_ms += round(self._cost_ms(run.rows))
                case _:
                    return received
        raise AssertionError("the writer stands still")

    def _write(self, waiting: Iterator[Records | EndOfInput]) -> None:
        while self.output.flush() and self._rng.random() < 0.95:
            element = next(waiting, None)
            if element is None:
                return
            self.output.send(element)

    def _cost_ms(self, rows: int) -> float:
        return rows * (self._ms_of_row or self._rng.choice([0.0, 1.0, 40.0]))


def debloater(
    channel_count: int,
    capacity_bytes: int = CAPACITY_BYTES,
    *,
    joins: bool = True,
    forgets_at_once: bool = False,
) -> Debloater:
    debloating = replace(HALF_A_SECOND, samples=1, period_ms=1.0) if forgets_at_once else None
    return Debloater(
        debloating or HALF_A_SECOND,
        channel_count=channel_count,
        capacity_bytes=capacity_bytes,
        joins=joins,
    )


def numbers(*values: int) -> Records:
    return Records(pa.record_batch({"n": pa.array(values, pa.int64())}))


def worked(channel_count: int, cost: Cost) -> Worked:
    return Worked(debloater(channel_count), cost, channel_count)


def measured_gate() -> tuple[Gate, LocalOutput, ManualClock]:
    gate, output, clock = Gate([A], CAPACITY_BYTES, EVERY_BATCH), LocalOutput(A), ManualClock()
    gate.measure_by(clock)
    gate.coalesce(Coalescing({A: InputOfChannel(0)}, 8_192))
    output.on_gate(gate)
    return gate, output, clock
