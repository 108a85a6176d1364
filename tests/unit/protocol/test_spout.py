"""A spout emits every record until one try is acked, whatever happens to the other tries."""

from collections import Counter

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.protocol.acking import Emission, Spout, numbers_of

IN_FLIGHT_MAX = 50


@pytest.mark.parametrize("seed", range(100))
def test_every_record_is_emitted_until_a_try_of_it_is_acked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spout = Spout(2, in_flight_max=IN_FLIGHT_MAX)
    processed: set[tuple[int, int]] = set()
    batches, released = {}, []

    while len(released) < 12:
        if spout.wants_records and len(batches) < 12:
            count = int(rng.integers(1, 120))
            batches[spout.on_read(count)] = count
        emission = spout.take()
        if emission is None:
            spout.rotate()
            continue
        numbers, records = numbers_of(emission.trees), list(records_of(emission))
        fate = rng.random(len(records))  # acked, failed or lost; some acks come twice
        acked = numbers[fate < 0.5]
        processed |= {record for record, f in zip(records, fate, strict=True) if f < 0.5}
        released += spout.on_acked(rng.permutation(np.concatenate([acked, acked[:3]])))
        spout.on_failed(numbers[(fate >= 0.5) & (fate < 0.8)])
        assert 0 <= spout.statistics().in_flight_count <= IN_FLIGHT_MAX
        assert spout.oldest_open == min((b for b in batches if b not in released), default=None)

    assert processed == {(b, row) for b, count in batches.items() for row in range(count)}
    assert sorted(released) == sorted(batches)
    assert spout.take() is None


def test_each_try_has_its_own_tree() -> None:
    spout = Spout(1, in_flight_max=10)
    spout.on_read(3)
    first = taken(spout)
    spout.on_failed(numbers_of(first.trees)[1:])

    again = taken(spout)

    assert (again.rows.tolist(), again.is_replay) == ([1, 2], True)
    assert not set(again.trees) & set(first.trees)


def test_a_late_ack_of_a_timed_out_try_does_not_settle_the_next_one() -> None:
    spout = Spout(0, in_flight_max=10)
    batch = spout.on_read(1)
    first = taken(spout)
    for _ in range(3):
        spout.rotate()
    again = taken(spout)

    assert spout.on_acked(numbers_of(first.trees)) == []
    assert spout.on_acked(numbers_of(again.trees)) == [batch]
    assert spout.statistics().timed_out_count == 1


def test_a_record_times_out_after_two_to_three_rotations() -> None:
    spout = Spout(0, in_flight_max=10)
    spout.on_read(1)
    spout.rotate()
    taken(spout)

    spout.rotate()
    spout.rotate()
    assert spout.take() is None
    spout.rotate()
    assert taken(spout).is_replay


def test_the_spout_keeps_no_more_records_in_flight_than_allowed() -> None:
    spout = Spout(0, in_flight_max=4)
    spout.on_read(6)

    first = taken(spout)
    assert first.rows.tolist() == [0, 1, 2, 3]
    assert spout.take() is None
    assert not spout.wants_records
    spout.on_acked(numbers_of(first.trees)[:1])

    assert taken(spout).rows.tolist() == [4]


def test_failed_records_are_emitted_before_new_ones() -> None:
    spout = Spout(0, in_flight_max=2)
    spout.on_read(4)
    spout.on_failed(numbers_of(taken(spout).trees)[1:])

    assert taken(spout).rows.tolist() == [1]
    assert not spout.wants_records


def test_a_record_that_keeps_failing_holds_back_only_the_restart_position() -> None:
    spout = Spout(0, in_flight_max=10)
    poisoned, later = spout.on_read(1), [spout.on_read(1) for _ in range(3)]
    first = taken(spout)

    for batch in later:
        spout.on_failed(numbers_of(first.trees))
        first = taken(spout)
        assert spout.on_acked(numbers_of(taken(spout).trees)) == [batch]

    assert spout.oldest_open == poisoned


def test_the_spout_reads_nothing_while_records_wait_to_be_emitted() -> None:
    spout = Spout(0, in_flight_max=10)
    assert spout.wants_records
    spout.on_read(2)

    assert not spout.wants_records


def test_acking_a_record_that_was_never_emitted_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        Spout(0, in_flight_max=1).on_acked(np.array([0]))


def test_every_try_is_counted_once() -> None:
    spout = Spout(0, in_flight_max=10)
    spout.on_read(3)
    numbers = numbers_of(taken(spout).trees)
    spout.on_failed(numbers[:1])
    spout.on_acked(numbers)  # the first one has failed already
    taken(spout)

    counts = spout.statistics()

    assert (counts.emitted_count, counts.replayed_count, counts.in_flight_count) == (4, 1, 1)
    assert (counts.acked_count, counts.failed_count, counts.timed_out_count) == (2, 1, 0)


def taken(spout: Spout) -> Emission:
    emission = spout.take()
    assert emission is not None
    return emission


def records_of(emission: Emission) -> Counter[tuple[int, int]]:
    return Counter((int(emission.batch), int(row)) for row in emission.rows)
