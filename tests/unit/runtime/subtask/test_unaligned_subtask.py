"""Overtaking barriers: state and in-flight records together are the records before the barrier."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.domain.elements import Barrier, Element, EndOfInput, Records, Watermark
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import BarrierOptions
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from tests.unit.runtime.fakes import batch_of, keys_of
from tests.unit.runtime.hosted import (
    ALIGNED,
    LEFT,
    OVERTAKING,
    RIGHT,
    JoiningSubtask,
    WaitsForEver,
)

SIDES = (LEFT, RIGHT)
PATIENT = replace(OVERTAKING, aligned_timeout_ms=100)


@pytest.mark.parametrize("coalesced_rows", [1, 5, 8_192])
@pytest.mark.parametrize("options", [OVERTAKING, PATIENT])
@pytest.mark.parametrize("seed", range(20))
def test_state_plus_records_in_flight_equal_the_records_before_the_barriers(
    seed: int, options: BarrierOptions, coalesced_rows: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    host = JoiningSubtask(tmp_path, options=options, coalesced_rows=coalesced_rows)
    streams = {side: random_stream(chance, start) for side, start in ((LEFT, 0), (RIGHT, 1000))}

    unsent = {side: list(stream) for side, stream in streams.items()}
    while unsent[LEFT] or unsent[RIGHT]:
        ready = [s for s in SIDES if unsent[s] and may_be_sent(unsent[s][0], host)]
        if not ready:
            host.clock.now_ms += 30
            host.step()
            continue
        side = chance.choice(ready)
        element = unsent[side].pop(0)
        host.inputs[side].send(stamped(element, host))
        host.clock.now_ms += chance.choice([0, 0, 40])
        for _ in range(chance.choice([0, 0, 1, 3])):
            host.step()
    host.clock.now_ms += 1_000
    host.consume()

    assert sorted(host.reporter.snapshots) == [1, 2, 3]
    for number in (1, 2, 3):
        in_flight = [key for keys in host.in_flight_at(number).values() for key in keys]
        before = [key for s in streams.values() for key in keys_before(s, number)]
        assert sorted(host.seen_at(number) + in_flight) == sorted(before)
        for side in SIDES:
            kept = host.in_flight_at(number).get(host.channels[side], [])
            assert kept == keys_before(streams[side], number)[len_of_consumed(host, side, number) :]
    everything = [key for s in streams.values() for key in keys_before(s, None)]
    assert sorted(host.sink.written) == sorted(everything)


def test_an_overtaking_barrier_cuts_before_queued_records_are_processed(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, options=OVERTAKING)
    host.inputs[LEFT].send(records(1, 2))
    host.inputs[LEFT].send(overtaking(1))
    host.inputs[LEFT].send(records(3))
    host.inputs[RIGHT].send(records(4))
    host.step()
    assert host.reporter.snapshots == {}, "the other channel may still deliver what precedes it"
    host.inputs[RIGHT].send(records(5))
    host.inputs[RIGHT].send(overtaking(1))
    host.step()

    assert host.seen_at(1) == []
    assert host.in_flight_at(1) == {host.channels[LEFT]: [1, 2], host.channels[RIGHT]: [4, 5]}
    phases = host.reporter.phases[1]
    assert phases.is_unaligned
    assert phases.persisted_bytes > 0
    assert [c.persisted_records for c in phases.channels] == [2, 2]
    host.consume()
    assert sorted(host.sink.written) == [1, 2, 3, 4, 5], "all of it is still delivered, once"


def test_behind_full_queues_only_an_aligned_barrier_waits(
    tmp_path: Path,
) -> None:
    queued = 20
    elements: dict[str, int] = {}
    for name, options, mark in (
        ("aligned", ALIGNED, barrier(1)),
        ("overtaking", OVERTAKING, overtaking(1)),
    ):
        host = JoiningSubtask(tmp_path / name, options=options)
        for side in SIDES:
            for _ in range(queued):
                host.inputs[side].send(records(1))
            host.inputs[side].send(mark)
        while not host.reporter.snapshots:
            host.step()
        elements[name] = len(host.sink.written)
        kept = [c.persisted_records for c in host.reporter.phases[1].channels]
        assert sum(kept) + elements[name] == 2 * queued

    assert elements == {"aligned": 2 * queued, "overtaking": 0}


def test_a_subtask_that_waits_for_credit_still_cuts(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, options=OVERTAKING)
    host.subtask.chain.flush = lambda: False  # type: ignore[method-assign]
    for side in SIDES:
        host.inputs[side].send(records(1))

    def barriers() -> None:
        for side in SIDES:
            host.inputs[side].send(overtaking(1))

    host.run(barriers)

    assert isinstance(host.reporter.failures[0], WaitsForEver)
    assert host.in_flight_at(1) == {channel: [1] for channel in host.channels.values()}


def test_an_alignment_that_is_in_time_keeps_nothing_in_flight(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, options=PATIENT)
    host.inputs[LEFT].send(stamped(barrier(1), host))
    host.inputs[LEFT].send(records(1))
    host.consume()
    host.clock.now_ms += 99
    host.inputs[RIGHT].send(records(2))
    host.inputs[RIGHT].send(stamped(barrier(1), host))
    host.consume()

    assert host.seen_at(1) == [2]
    assert host.in_flight_at(1) == {}
    assert not host.reporter.phases[1].is_unaligned


def test_an_alignment_that_takes_too_long_becomes_unaligned(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, options=PATIENT)
    host.inputs[LEFT].send(records(1))
    host.inputs[LEFT].send(stamped(barrier(1), host))
    host.inputs[LEFT].send(records(2))
    host.consume()
    assert host.sink.written == [1], "the left side is held back"
    host.inputs[RIGHT].send(records(3))

    assert host.feed.due_ms == host.clock.now_ms + 100
    host.clock.now_ms += 100
    host.step()
    host.inputs[RIGHT].send(records(4))
    host.inputs[RIGHT].send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))
    host.consume()

    assert host.seen_at(1) == [1]
    assert host.in_flight_at(1) == {host.channels[RIGHT]: [3, 4]}
    assert sorted(host.sink.written) == [1, 2, 3, 4]
    assert host.feed.due_ms is None


def test_the_aligned_timeout_counts_from_the_trigger_despite_a_wrong_clock(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path, options=PATIENT)
    now_ms = host.clock.wall_ms()

    host.inputs[LEFT].send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=now_ms - 60))
    host.step()
    assert host.feed.due_ms == now_ms + 40
    host.inputs[LEFT].send(Barrier(checkpoint_id=CheckpointId(2), trigger_ms=now_ms + 10_000_000))
    host.step()
    assert host.feed.due_ms is not None
    assert host.feed.due_ms <= now_ms + 100, "a clock that was set back costs no more than this"


@pytest.mark.parametrize("kind", [{"is_savepoint": True}, {"is_final": True}])
def test_savepoints_and_final_checkpoints_always_align(
    kind: dict[str, bool], tmp_path: Path
) -> None:
    host = JoiningSubtask(tmp_path, options=PATIENT)

    host.inputs[LEFT].send(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, **kind))  # type: ignore[arg-type]
    host.consume()
    host.clock.now_ms += 10_000
    host.consume()

    assert host.feed.due_ms is None
    assert host.reporter.snapshots == {}


def test_an_abort_drops_records_in_flight_and_the_next_checkpoint_is_exact(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path, options=OVERTAKING)
    host.inputs[LEFT].send(records(1))
    host.inputs[LEFT].send(overtaking(1))
    host.step()

    host.mailbox.post(CheckpointAborted(CheckpointId(1)))
    host.run()
    host.inputs[RIGHT].send(overtaking(1))
    for side in SIDES:
        host.inputs[side].send(records(2))
        host.inputs[side].send(overtaking(2))
    host.step()
    host.step()
    host.step()

    assert list(host.reporter.snapshots) == [2]
    in_flight = [key for keys in host.in_flight_at(2).values() for key in keys]
    assert sorted(host.seen_at(2) + in_flight) == [1, 2, 2]


def test_restored_records_in_flight_are_processed_before_new_records(tmp_path: Path) -> None:
    host = JoiningSubtask(
        tmp_path,
        options=OVERTAKING,
        in_flight=[(0, batch_of([(1, 1)])), (1, batch_of([(2, 2)]))],
    )
    host.inputs[LEFT].send(overtaking(1))
    host.inputs[LEFT].send(records(3))
    host.inputs[RIGHT].send(overtaking(1))

    host.consume()

    assert host.sink.written == [1, 2, 3]
    assert sorted(host.seen_at(1)) == [1, 2], "a barrier waits for it as well"


def records(*keys: int) -> Records:
    return Records(batch_of([(key, key) for key in keys]))


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(number), trigger_ms=0)


def overtaking(number: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(number), trigger_ms=0, overtakes=True)


def stamped(element: Element, host: JoiningSubtask) -> Element:
    """Returns the element; a barrier gets the present time as its trigger time."""
    if not isinstance(element, Barrier):
        return element
    return Barrier(
        checkpoint_id=element.checkpoint_id,
        trigger_ms=host.clock.wall_ms(),
        overtakes=element.overtakes,
    )


def may_be_sent(element: Element, host: JoiningSubtask) -> bool:
    """One checkpoint at a time: the next is triggered once the subtask acknowledged this one."""
    if not isinstance(element, Barrier) or element.checkpoint_id == 1:
        return True
    return element.checkpoint_id - 1 in host.reporter.snapshots


def random_stream(chance: random.Random, first_key: int) -> list[Element]:
    stream: list[Element] = []
    key = first_key
    for number in (1, 2, 3):
        for _ in range(chance.randint(0, 3)):
            count = chance.randint(1, 3)
            stream.append(records(*range(key, key + count)))
            key += count
        stream.append(Watermark(key))
        stream.append(barrier(number) if chance.random() < 0.5 else overtaking(number))
    return [*stream, records(key), EndOfInput()]


def keys_before(stream: list[Element], number: int | None) -> list[int]:
    keys: list[int] = []
    for element in stream:
        if isinstance(element, Barrier) and element.checkpoint_id == number:
            return keys
        if isinstance(element, Records):
            keys += keys_of(element.batch)
    return keys


def len_of_consumed(host: JoiningSubtask, side: str, number: int) -> int:
    first = 0 if side == LEFT else 1000
    return len([key for key in host.seen_at(number) if (key >= 1000) == (first == 1000)])
