"""The contract of channels, on a queue within a slot and on a socket between two slots."""

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipelines.channels.channel import ChannelClosed, ChannelStatistics, Output, PeerAddress
from pipelines.channels.credit import INITIAL_WINDOW_BYTES, Debloating, cost_of
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.domain.elements import (
    Barrier,
    CancelCheckpoint,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, Uid
from pipelines.domain.origins import RecordOrigin
from tests.certificates import Authority
from tests.polling import wait_until
from tests.unit.runtime.fakes import ManualClock

DEADLINE_S = 20.0
A, B = ChannelId("a[0]>c.0[0]"), ChannelId("b[0]>c.1[0]")


def test_a_channel_is_first_in_first_out(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    sent: list[Element] = [
        numbers(1),
        Watermark(-5),
        WatermarkStatus(is_idle=True),
        numbers(2, 3),
        Barrier(
            checkpoint_id=CheckpointId(7),
            trigger_ms=1_700_000_000_000,
            is_savepoint=True,
            is_native=True,
        ),
        Barrier(checkpoint_id=CheckpointId(8), trigger_ms=1_700_000_000_001, is_final=True),
        numbers(4),
        CancelCheckpoint(CheckpointId(9)),
        EndOfInput(),
    ]

    for element in sent:
        output.send(element)

    assert [element for _, element in take(gate, len(sent))] == sent


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_reordered_in_any_interleaving(pair: "Pair", seed: int) -> None:
    rng = random.Random(seed)
    channels = [ChannelId(f"{name}[0]>z.0[0]") for name in "abcd"[: rng.randint(1, 4)]]
    gate = Gate(channels, capacity_bytes=rng.choice([1, 500, 5_000, 1 << 20]))
    streams = {channel: random_stream(rng) for channel in channels}
    outputs = pair.outputs(gate)

    writers = [
        in_thread(lambda output=outputs[c], stream=streams[c]: write(output, *stream))
        for c in channels
    ]
    received = read_to_the_end(gate, rng)

    assert newest_marks(received) == newest_marks(streams)
    for writer in writers:
        writer.join(DEADLINE_S)
        assert not writer.is_alive()


@pytest.mark.parametrize("capacity_bytes", [1, 2_000, 10_000])
def test_bytes_in_flight_never_exceed_the_capacity_and_one_element(
    pair: "Pair", capacity_bytes: int
) -> None:
    gate, output = pair.channel(A, capacity_bytes=capacity_bytes)
    element = numbers(*range(50))
    allowed = capacity_bytes + cost_of(element)

    in_thread(lambda: write(output, *[element] * 100))
    wait_until(lambda: not output.flush() and queued(gate, A).queued_bytes > 0)
    seen = [queued(gate, A).queued_bytes]
    for _ in range(100):
        take(gate, 1)
        seen.append(queued(gate, A).queued_bytes)

    assert 0 < max(seen) <= allowed


def test_a_debloated_channel_begins_with_a_small_window(pair: "Pair") -> None:
    gate = Gate([A], debloating=Debloating(target_ms=500.0))
    output = pair.outputs(gate)[A]
    element = numbers(*range(50))

    in_thread(lambda: write(output, *[element] * 1_000))
    wait_until(lambda: not output.flush() and queued(gate, A).queued_bytes >= INITIAL_WINDOW_BYTES)

    assert queued(gate, A).queued_bytes < INITIAL_WINDOW_BYTES + 2 * cost_of(element)


def test_elements_for_a_full_channel_wait_at_the_writer_in_order(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    sent = [numbers(1), numbers(2), Watermark(3), numbers(4)]

    for element in sent:
        output.send(element)
    wait_until(lambda: queued(gate, A).queued_records == 1)

    assert not output.flush()
    received = []
    for _ in sent:
        received.append(take(gate, 1)[0][1])
        wait_until(lambda: output.flush() or queued(gate, A).queued_bytes > 0)
    assert received == sent
    assert queued(gate, A).queued_bytes == 0


def test_a_writer_is_woken_when_the_channel_has_room_again(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    output.send(numbers(1))
    woken = threading.Event()
    output.on_available(woken.set)
    assert woken.is_set(), "it may have missed the news"
    woken.clear()

    assert not output.flush()
    take(gate, 1)

    assert woken.wait(DEADLINE_S)
    flush_all(output)


def test_an_overtaking_barrier_passes_elements_that_wait_at_the_writer(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    for element in (numbers(1), numbers(2), Watermark(9), numbers(3)):
        output.send(element)
    barrier = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, overtakes=True)

    overtaken = output.overtake(barrier)

    assert [batch.column("n").to_pylist() for batch in overtaken] == [[2], [3]]
    assert not output.holds_barrier(CheckpointId(1))
    received = [element for _, element in take(gate, 2)]
    flush_all_of(gate, output, received, 5)
    assert received == [numbers(1), barrier, numbers(2), Watermark(9), numbers(3)]


def test_an_overtaking_barrier_replaces_the_waiting_one_at_the_front(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    for element in (
        numbers(1),
        numbers(2),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0),
        numbers(3),
    ):
        output.send(element)
    assert output.holds_barrier(CheckpointId(1))
    barrier = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, overtakes=True)

    overtaken = output.overtake(barrier)

    assert [batch.column("n").to_pylist() for batch in overtaken] == [[2]]
    assert not output.holds_barrier(CheckpointId(1))
    received = [element for _, element in take(gate, 2)]
    flush_all_of(gate, output, received, 4)
    assert received == [numbers(1), barrier, numbers(2), numbers(3)]


def test_a_held_back_channel_delivers_nothing_but_counts_arrivals(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    gate.hold_back(A)

    elements = [numbers(1, 2), Watermark(3), numbers(3)]
    for element in elements:
        output.send(element)
    wait_until(lambda: queued(gate, A).queued_records == 3)

    assert gate.poll() is None
    held = sum(map(cost_of, elements))
    assert queued(gate, A) == ChannelStatistics(
        channel=A,
        queued_records=3,
        queued_bytes=held,
        read_bytes=0,
        held_back=True,
        window_bytes=gate.capacity_bytes,
        queued_ms=None,
    )


def test_a_gate_notes_held_records_at_the_start_and_at_each_arrival(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    clock = ManualClock()
    gate.measure_by(clock)
    output.send(numbers(1, 2))
    wait_until(lambda: queued(gate, A).queued_records == 2)
    assert gate.held_steps() == {}

    gate.hold_back(A)
    clock.now_ms += 5
    output.send(Watermark(3))
    output.send(numbers(3))
    wait_until(lambda: queued(gate, A).queued_records == 3)

    first, second = cost_of(numbers(1, 2)), cost_of(numbers(3))
    now_ms = clock.now_ms
    assert gate.held_steps() == {A: [(now_ms - 5, 2, first), (now_ms, 3, first + second)]}
    gate.resume(A)
    assert gate.held_steps() == {}


def test_a_held_back_channel_does_not_stop_its_neighbour(pair: "Pair") -> None:
    gate = Gate([A, B], capacity_bytes=1_000)
    outputs = pair.outputs(gate)
    gate.hold_back(A)

    stuck = in_thread(lambda: write(outputs[A], *map(numbers, range(100))))
    wait_until(lambda: queued(gate, A).queued_bytes >= 1_000)
    neighbour = in_thread(lambda: write(outputs[B], *map(numbers, range(100))))
    received = take(gate, 100)

    assert [(channel, rows(e)) for channel, e in received] == [(B, [i]) for i in range(100)]
    neighbour.join(DEADLINE_S)
    assert stuck.is_alive(), "its own channel is full"
    gate.resume(A)
    assert [rows(e) for _, e in take(gate, 100)] == [[i] for i in range(100)]


def test_resume_delivers_in_order_what_arrived_meanwhile(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    elements = [numbers(i) for i in range(5)]
    output.send(elements[0])
    take(gate, 1)
    gate.hold_back(A)
    for element in elements[1:]:
        output.send(element)
    wait_until(lambda: queued(gate, A).queued_records == 4)
    assert queued(gate, A).read_bytes == cost_of(elements[0])

    gate.resume(A)

    assert [rows(e) for _, e in take(gate, 4)] == [[1], [2], [3], [4]]
    passed = sum(map(cost_of, elements))
    assert queued(gate, A) == ChannelStatistics(
        channel=A,
        queued_records=0,
        queued_bytes=0,
        read_bytes=passed,
        held_back=False,
        window_bytes=gate.capacity_bytes,
        queued_ms=None,
    )
    assert output.sent_bytes == passed


def test_open_channels_are_served_in_turn(pair: "Pair") -> None:
    gate = Gate([A, B])
    outputs = pair.outputs(gate)
    for i in range(3):
        outputs[A].send(numbers(i))
    for i in range(3):
        outputs[B].send(numbers(i))
    wait_until(lambda: queued(gate, A).queued_records == queued(gate, B).queued_records == 3)

    assert [channel for channel, _ in take(gate, 6)] == [A, B, A, B, A, B]


def test_closing_the_gate_ends_a_blocked_writer_and_drops_the_queue(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    output.send(numbers(1))
    ends: list[Exception] = []
    writer = in_thread(lambda: send_until_closed(output, ends))
    wait_until(lambda: not output.flush())

    gate.close()
    writer.join(DEADLINE_S)

    assert [type(end) for end in ends] == [ChannelClosed]
    assert queued(gate, A).queued_records == 0
    with pytest.raises(ChannelClosed):
        gate.poll()


def test_closing_the_network_ends_a_blocked_writer(pair: "Pair") -> None:
    _, output = pair.channel(A, capacity_bytes=1)
    output.send(numbers(1))
    ends: list[Exception] = []
    writer = in_thread(lambda: send_until_closed(output, ends))
    wait_until(lambda: not output.flush())

    pair.writing.close()
    writer.join(DEADLINE_S)

    assert [type(end) for end in ends] == [ChannelClosed]
    assert pair.failures[pair.writing_slot] == [], "an end on purpose is no failure"


def test_marks_pass_without_credit_but_do_not_overtake_records(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=1)
    sent = [
        numbers(1),
        Watermark(1),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0),
        EndOfInput(),
    ]

    for element in sent:
        output.send(element)  # no reader yet

    assert [element for _, element in take(gate, 4)] == sent


def test_an_element_above_the_capacity_passes_an_empty_channel(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=100)
    large = numbers(*range(100_000))

    for _ in range(3):
        write(output, large)
        received = take(gate, 1)

    assert [element for _, element in received] == [large]


def test_elements_of_every_size_pass_a_small_channel(pair: "Pair") -> None:
    sizes = [*range(0, 2_000, 97), 40_000]
    gate, output = pair.channel(A, capacity_bytes=3_000)

    in_thread(lambda: write(output, *(numbers(*range(size)) for size in sizes)))

    assert [len(rows(e)) for _, e in take(gate, len(sizes))] == sizes


@pytest.mark.parametrize("name", ["types", "dictionary", "nested dictionary", "no columns"])
def test_batches_arrive_as_they_were_sent(pair: "Pair", name: str) -> None:
    gate, output = pair.channel(A)
    batch = BATCHES[name]
    sent = [batch, batch.slice(1, 1), batch.slice(0, 0), batch]

    for part in sent:
        output.send(Records(part))

    for (_, element), expected in zip(take(gate, len(sent)), sent, strict=True):
        assert isinstance(element, Records)
        element.batch.validate(full=True)
        assert element.batch.equals(expected, check_metadata=True)


def test_the_schema_of_a_channel_may_change(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    sent = [Records(batch) for batch in BATCHES.values()] * 2

    for element in sent:
        output.send(element)

    assert [element for _, element in take(gate, len(sent))] == sent


def test_empty_batches_are_bounded_too(pair: "Pair") -> None:
    gate, output = pair.channel(A, capacity_bytes=5_000)

    in_thread(lambda: write(output, *[numbers()] * 1_000))
    wait_until(lambda: not output.flush())

    assert [rows(e) for _, e in take(gate, 1_000)] == [[]] * 1_000


def test_nothing_may_follow_the_end(pair: "Pair") -> None:
    _, output = pair.channel(A)
    output.send(EndOfInput())

    with pytest.raises(InvariantViolated, match="nothing follows the end"):
        output.send(numbers(1))


def test_an_arrival_and_a_resume_each_wake_the_reader(
    pair: "Pair",
) -> None:
    gate, output = pair.channel(A)
    woken = threading.Event()
    gate.on_available(woken.set)

    output.send(numbers(1))
    assert woken.wait(DEADLINE_S)
    gate.hold_back(A)
    woken.clear()
    gate.resume(A)

    assert woken.is_set()
    assert rows(take(gate, 1)[0][1]) == [1]


def test_a_reader_that_registers_after_an_arrival_is_woken(pair: "Pair") -> None:
    gate, output = pair.channel(A)
    output.send(numbers(1))
    wait_until(lambda: queued(gate, A).queued_records == 1)
    woken = threading.Event()

    gate.on_available(woken.set)

    assert woken.is_set()


def test_a_writer_waits_for_a_gate_that_is_registered_later(pair: "Pair") -> None:
    output = pair.writing.output(A, pair.reading_slot)
    gate = Gate([A])

    output.send(Watermark(1))
    writer = in_thread(lambda: write(output, EndOfInput()))
    assert not output.flush()
    pair.reading.register_gate(gate)

    assert take(gate, 2) == [(A, Watermark(1)), (A, EndOfInput())]
    writer.join(DEADLINE_S)


def test_closing_the_network_ends_a_writer_that_waits_for_a_gate(pair: "Pair") -> None:
    output = pair.writing.output(A, pair.reading_slot)
    ends: list[Exception] = []
    writer = in_thread(lambda: send_until_closed(output, ends))
    assert not output.flush()

    pair.writing.close()
    writer.join(DEADLINE_S)

    assert [type(end) for end in ends] == [ChannelClosed]


class Pair:
    """A writing and a reading slot; for local channels they are one slot."""

    def __init__(self, networks: list[SlotNetwork], failures: list[list[str]]) -> None:
        self.failures = failures
        self.writing_slot, self.reading_slot = 0, len(networks) - 1
        self.writing, self.reading = networks[0], networks[-1]

    def outputs(self, gate: Gate) -> dict[ChannelId, Output]:
        self.reading.register_gate(gate)
        outputs = {c: self.writing.output(c, self.reading_slot) for c in gate.channels}
        for output in outputs.values():
            flush_all(output)  # the reader is already registered
        return outputs

    def channel(self, channel: ChannelId, capacity_bytes: int = 1 << 20) -> tuple[Gate, Output]:
        gate = Gate([channel], capacity_bytes)
        return gate, self.outputs(gate)[channel]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("channels") / "tls")


@pytest.fixture(params=["local", "remote", "tls"])
def pair(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Pair]:
    token, slots = secrets.token_hex(16), 1 if request.param == "local" else 2
    failures: list[list[str]] = [[] for _ in range(slots)]
    networks = [
        SlotNetwork(
            slot,
            Attempt(1),
            token,
            on_failure=failures[slot].append,
            tls=authority.tls() if request.param == "tls" else None,
        )
        for slot in range(slots)
    ]
    addresses = [PeerAddress(slot, *network.address) for slot, network in enumerate(networks)]
    for network in networks:
        network.connect(addresses)
    yield Pair(networks, failures)
    for network in networks:
        network.close()


BATCHES = {
    "types": pa.record_batch(
        {
            "carrier": pa.array(["UA", None, "déjà"]),
            "at": pa.array(
                [datetime(2013, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")
            ),
            "late": pa.array([True, None, False]),
            "delay": pa.array([1.5, None, -0.0]),
            "nothing": pa.nulls(3),
            "legs": pa.array([["a"], [], None]),
        }
    ).replace_schema_metadata({"origin": "test"}),
    "dictionary": pa.record_batch({"c": pa.array(["x", None, "y"]).dictionary_encode()}),
    "nested dictionary": pa.record_batch(
        {"c": pa.array([["x"], ["y", "x"], None], pa.list_(pa.dictionary(pa.int8(), pa.string())))}
    ),
    "no columns": pa.record_batch([], schema=pa.schema([])),
}


def numbers(*values: int) -> Records:
    return Records(pa.record_batch({"n": pa.array(values, pa.int64())}))


def origin_at(first: int, count: int) -> RecordOrigin:
    return RecordOrigin(
        source=Uid("events"),
        subtask=0,
        split="part-1",
        first_offset=first,
        last_offset=first + count - 1,
    )


def rows(element: Element) -> list[int]:
    assert isinstance(element, Records)
    return element.batch.column("n").to_pylist()


def random_stream(rng: random.Random) -> list[Element]:
    elements: list[Element] = []
    for i in range(rng.randint(0, 60)):
        size = rng.choice([0, 1, 30, 700])
        marks: list[Element] = [
            Watermark(i),
            Barrier(checkpoint_id=CheckpointId(i + 1), trigger_ms=i),
        ]
        batch = numbers(*range(i, i + size)).batch
        records: list[Element] = [Records(batch), Records(batch, (origin_at(i, size),))]
        elements.append(rng.choice(records * 2 + marks))
    return [*elements, EndOfInput()]


def newest_marks(streams: dict[ChannelId, list[Element]]) -> dict[ChannelId, list[Element]]:
    """Drops each watermark that another one follows directly, since those may merge."""
    return {
        channel: [
            element
            for element, following in zip(stream, [*stream[1:], None], strict=True)
            if not (isinstance(element, Watermark) and isinstance(following, Watermark))
        ]
        for channel, stream in streams.items()
    }


def read_to_the_end(gate: Gate, rng: random.Random) -> dict[ChannelId, list[Element]]:
    """Reads every channel to its end, holding back and resuming channels at random."""
    received: dict[ChannelId, list[Element]] = {channel: [] for channel in gate.channels}
    open_channels = set(gate.channels)
    held: set[ChannelId] = set()
    while open_channels:
        if held and rng.random() < 0.3:
            channel = rng.choice(sorted(held))
            held.remove(channel)
            gate.resume(channel)
        polled = gate.poll()
        if polled is None and held == open_channels:
            continue
        if polled is None and not held:
            polled = take(gate, 1)[0]
        if polled is None:
            continue
        channel, element = polled
        assert channel not in held, "a held-back channel gives nothing"
        received[channel].append(element)
        if isinstance(element, EndOfInput):
            open_channels.remove(channel)
        elif rng.random() < 0.2:
            held.add(channel)
            gate.hold_back(channel)
    return received


def take(gate: Gate, count: int) -> list[tuple[ChannelId, Element]]:
    woken = threading.Event()
    gate.on_available(woken.set)
    taken: list[tuple[ChannelId, Element]] = []
    while len(taken) < count:
        polled = gate.poll()
        if polled is not None:
            taken.append(polled)
            continue
        assert woken.wait(DEADLINE_S), f"only {len(taken)} of {count} elements came"
        woken.clear()
    return taken


def queued(gate: Gate, channel: ChannelId) -> ChannelStatistics:
    return next(s for s in gate.statistics() if s.channel == channel)


def write(output: Output, *elements: Element) -> None:
    """Writes as a subtask does: no new element until the channel would take it at once."""
    woken = threading.Event()
    output.on_available(woken.set)
    for element in elements:
        while not output.flush():
            assert woken.wait(DEADLINE_S), "no credit came"
            woken.clear()
        output.send(element)


def flush_all_of(gate: Gate, output: Output, received: list[Element], count: int) -> None:
    while len(received) < count:
        wait_until(lambda: output.flush() or queued(gate, A).queued_bytes > 0)
        received.append(take(gate, 1)[0][1])


def flush_all(output: Output) -> None:
    wait_until(output.flush)


def send_until_closed(output: Output, ends: list[Exception]) -> None:
    try:
        while True:
            write(output, numbers(1))
    except ChannelClosed as end:
        ends.append(end)


def in_thread(body: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        # The test may end before the writer does; the network then closes the channel.
        try:
            body()
        except ChannelClosed:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
