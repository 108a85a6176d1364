"""Counting barriers: a cut covers at least the records before them, and no input is blocked."""

import random
from itertools import takewhile

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.protocol.alignment import MAX_TRACKED, BarrierTracker
from pipelines.protocol.effects import Abort, AlignmentEffect, CancelDownstream, Snapshot

Streams = dict[str, list[str | int]]  # a str is a record, an int is a barrier
A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")


@pytest.mark.parametrize("seed", range(60))
def test_a_snapshot_covers_at_least_the_records_before_the_barrier(seed: int) -> None:
    rng = random.Random(seed)
    streams = {name: random_stream(rng, name) for name in "abc"[: rng.randint(1, 3)]}

    snapshots = run(rng, streams)

    assert sorted(snapshots) == [1, 2, 3]
    for checkpoint_id, covered in snapshots.items():
        assert covered >= records_before(streams, checkpoint_id)


def test_records_after_a_fast_barrier_enter_the_snapshot() -> None:
    """This distinguishes the mode from an alignment; otherwise they would differ only in name."""
    surplus = 0
    for seed in range(50):
        rng = random.Random(seed)
        streams = {name: random_stream(rng, name) for name in "ab"}
        for checkpoint_id, covered in run(rng, streams).items():
            surplus += len(covered - records_before(streams, checkpoint_id))

    assert surplus > 0


def test_the_last_barrier_triggers_the_snapshot_and_no_input_waits() -> None:
    tracker = BarrierTracker([A, B])

    assert barrier(tracker, A, 1) == []
    assert tracker.aligning_id == 1
    assert barrier(tracker, B, 1) == [Snapshot(CheckpointId(1))]
    assert tracker.aligning_id is None


def test_overlapping_checkpoints_do_not_hinder_each_other() -> None:
    tracker = BarrierTracker([A, B])
    barrier(tracker, A, 1)
    barrier(tracker, A, 2)

    assert barrier(tracker, B, 1) == [Snapshot(CheckpointId(1))]
    assert barrier(tracker, B, 2) == [Snapshot(CheckpointId(2))]


def test_a_snapshot_aborts_older_checkpoints_that_an_input_skipped() -> None:
    tracker = BarrierTracker([A, B])
    barrier(tracker, A, 1)
    barrier(tracker, B, 2)

    assert barrier(tracker, A, 2) == [Abort(CheckpointId(1)), Snapshot(CheckpointId(2))]
    assert barrier(tracker, B, 1) == [], "late"


def test_an_ended_input_is_not_waited_for() -> None:
    tracker = BarrierTracker([A, B])
    barrier(tracker, A, 1)
    barrier(tracker, A, 2)

    assert tracker.on_end(B) == [Snapshot(CheckpointId(1)), Snapshot(CheckpointId(2))]
    assert barrier(tracker, A, 3) == [Snapshot(CheckpointId(3))]
    assert tracker.on_end(A) == []
    assert not tracker.has_open_inputs


def test_an_aborted_checkpoint_takes_no_snapshot_and_others_continue() -> None:
    tracker = BarrierTracker([A, B])
    barrier(tracker, A, 1)

    assert tracker.on_aborted(CheckpointId(1)) == [Abort(CheckpointId(1))]
    assert tracker.on_aborted(CheckpointId(1)) == []
    assert barrier(tracker, B, 1) == []
    assert tracker.on_aborted(CheckpointId(3)) == [], "nothing of it has come yet"
    assert barrier(tracker, A, 2) + barrier(tracker, B, 2) == [Snapshot(CheckpointId(2))]
    assert barrier(tracker, A, 3) + barrier(tracker, B, 3) == []


def test_a_cancellation_is_passed_on_once() -> None:
    tracker = BarrierTracker([A, B, C])
    barrier(tracker, A, 1)

    assert tracker.on_cancelled(B, CheckpointId(1)) == [
        Abort(CheckpointId(1)),
        CancelDownstream(CheckpointId(1)),
    ]
    assert tracker.on_cancelled(C, CheckpointId(1)) == []


def test_the_number_of_tracked_checkpoints_is_bounded() -> None:
    tracker = BarrierTracker([A, B])
    for checkpoint_id in range(1, MAX_TRACKED + 1):
        assert barrier(tracker, A, checkpoint_id) == []

    assert barrier(tracker, A, MAX_TRACKED + 1) == [Abort(CheckpointId(1))]
    assert barrier(tracker, B, 1) == []


def test_an_impossible_delivery_is_reported_not_absorbed() -> None:
    tracker = BarrierTracker([A, B])
    barrier(tracker, A, 1)

    for impossible in (
        lambda: barrier(tracker, A, 1),
        lambda: barrier(tracker, C, 1),
        lambda: tracker.on_end(C),
        lambda: tracker.on_cancelled(C, CheckpointId(2)),
    ):
        with pytest.raises(InvariantViolated):
            impossible()


def barrier(tracker: BarrierTracker, channel: ChannelId, number: int) -> list[AlignmentEffect]:
    return tracker.on_barrier(channel, CheckpointId(number))


def random_stream(rng: random.Random, name: str) -> list[str | int]:
    stream: list[str | int] = []
    for number in (1, 2, 3):
        stream += [f"{name}{number}.{i}" for i in range(rng.randint(0, 4))] + [number]
    return stream


def records_before(streams: Streams, number: int) -> set[str]:
    prefixes = (takewhile(lambda e: e != number, stream) for stream in streams.values())
    return {e for prefix in prefixes for e in prefix if isinstance(e, str)}


def run(rng: random.Random, streams: Streams) -> dict[int, set[str]]:
    """Runs one random interleaving; returns what was consumed at each snapshot."""
    tracker = BarrierTracker(ChannelId(name) for name in streams)
    queues = {name: list(stream) for name, stream in streams.items()}
    consumed: set[str] = set()
    snapshots: dict[int, set[str]] = {}
    while ready := [name for name, queue in queues.items() if queue]:
        name = rng.choice(ready)
        element = queues[name].pop(0)
        if isinstance(element, str):
            consumed.add(element)
            continue
        for effect in barrier(tracker, ChannelId(name), element):
            assert isinstance(effect, Snapshot)
            snapshots[effect.checkpoint_id] = set(consumed)
    return snapshots
