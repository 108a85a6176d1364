"""Alignment: the paper's guarantee over random interleavings, then named corner cases."""

import random
from collections.abc import Set
from itertools import takewhile

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.protocol.alignment import BarrierAligner
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    Block,
    CancelDownstream,
    Resume,
    Snapshot,
)

Streams = dict[str, list[str | int]]  # a str is a record, an int is a barrier
A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")


@pytest.mark.parametrize("seed", range(200))
def test_snapshot_covers_exactly_the_records_before_the_barrier(seed: int) -> None:
    rng = random.Random(seed)
    streams = {name: random_stream(rng, name) for name in "abc"[: rng.randint(1, 3)]}

    host = Host(streams)
    host.run(rng)

    assert host.snapshots == {n: records_before(streams, n) for n in (1, 2, 3)}


@pytest.mark.parametrize("seed", range(300))
def test_checkpoints_aborted_at_any_moment_take_no_snapshot_and_block_no_input(seed: int) -> None:
    rng = random.Random(seed)
    streams = {name: random_stream(rng, name) for name in "abc"[: rng.randint(1, 3)]}
    given_up = set(rng.sample([1, 2, 3], rng.randint(1, 3)))

    host = Host(streams)
    host.run(rng, give_up=given_up)

    assert host.consumed == {e for stream in streams.values() for e in stream if isinstance(e, str)}
    assert not host.blocked
    for checkpoint_id, covered in host.snapshots.items():
        assert covered == records_before(streams, checkpoint_id)
        assert checkpoint_id not in host.given_up_before_cut
    assert set(host.snapshots) | host.given_up_before_cut == {1, 2, 3}


def test_a_newer_barrier_aborts_the_older_checkpoint() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)

    assert barrier(aligner, B, 2) == [Abort(CheckpointId(1)), Resume(frozenset({A})), Block(B)]


def test_a_late_barrier_changes_nothing() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 2)

    assert barrier(aligner, B, 1) == []
    assert barrier(aligner, B, 2) == [
        Block(B),
        Snapshot(CheckpointId(2)),
        Resume(frozenset({A, B})),
    ]


def test_the_end_of_the_last_awaited_input_completes_the_alignment() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)

    assert aligner.on_end(B) == [Snapshot(CheckpointId(1)), Resume(frozenset({A}))]


def test_inputs_that_end_between_checkpoints_have_no_effect() -> None:
    aligner = aligner_of(A, B)

    assert aligner.on_end(A) + aligner.on_end(B) == []
    assert not aligner.has_open_inputs


def test_an_ended_input_is_not_waited_for() -> None:
    aligner = aligner_of(A, B)
    aligner.on_end(A)

    assert barrier(aligner, B, 1) == [Block(B), Snapshot(CheckpointId(1)), Resume(frozenset({B}))]


def test_aborting_the_aligning_checkpoint_unblocks_its_inputs() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)

    assert aligner.on_aborted(CheckpointId(1)) == [Abort(CheckpointId(1)), Resume(frozenset({A}))]
    assert barrier(aligner, B, 1) == []
    assert aligner.aligning_id is None


def test_barriers_of_an_already_aborted_checkpoint_are_ignored() -> None:
    aligner = aligner_of(A, B)

    assert aligner.on_aborted(CheckpointId(1)) == []
    assert barrier(aligner, A, 1) + barrier(aligner, B, 1) == []
    assert barrier(aligner, A, 2) == [Block(A)]


def test_aborting_an_older_checkpoint_does_not_disturb_the_aligning_one() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 2)

    assert aligner.on_aborted(CheckpointId(1)) == []
    assert aligner.aligning_id == CheckpointId(2)


@pytest.mark.parametrize("arrived", [[A], []], ids=["aligning", "before its first barrier"])
def test_aborting_a_newer_checkpoint_leaves_the_older_one_under_way(
    arrived: list[ChannelId],
) -> None:
    aligner = aligner_of(A, B)
    for channel in arrived:
        barrier(aligner, channel, 1)

    assert aligner.on_aborted(CheckpointId(2)) == []
    effects = [barrier(aligner, channel, 1) for channel in (A, B) if channel not in arrived]
    assert Snapshot(CheckpointId(1)) in effects[-1]
    assert barrier(aligner, A, 2) + barrier(aligner, B, 2) == []
    assert barrier(aligner, A, 3) == [Block(A)]


def test_a_cancellation_marker_also_ends_older_checkpoints() -> None:
    aligner = aligner_of(A, B)
    aligner.on_cancelled(A, CheckpointId(2))

    assert barrier(aligner, B, 1) == []


def test_a_cancellation_unblocks_the_inputs_and_is_sent_downstream_once() -> None:
    aligner = aligner_of(A, B, C)
    barrier(aligner, A, 1)

    assert aligner.on_cancelled(B, CheckpointId(1)) == [
        Abort(CheckpointId(1)),
        Resume(frozenset({A})),
        CancelDownstream(CheckpointId(1)),
    ]
    assert aligner.on_cancelled(C, CheckpointId(1)) == []
    assert barrier(aligner, A, 1) == []


def test_a_cancellation_before_any_barrier_is_remembered() -> None:
    aligner = aligner_of(A, B)

    assert aligner.on_cancelled(A, CheckpointId(1)) == [CancelDownstream(CheckpointId(1))]
    assert barrier(aligner, B, 1) == []
    assert barrier(aligner, B, 2) == [Block(B)]


def test_a_newer_cancellation_ends_the_older_alignment() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)

    assert aligner.on_cancelled(B, CheckpointId(2)) == [
        Abort(CheckpointId(1)),
        Resume(frozenset({A})),
        CancelDownstream(CheckpointId(2)),
    ]


def test_a_late_cancellation_changes_nothing() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)
    barrier(aligner, B, 1)
    barrier(aligner, A, 2)

    assert aligner.on_cancelled(B, CheckpointId(1)) == []
    assert aligner.aligning_id == CheckpointId(2)


def test_leaving_an_alignment_returns_the_inputs_that_it_blocked() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)

    assert aligner.leave(CheckpointId(1)) == frozenset({A})
    assert barrier(aligner, B, 1) == []
    assert aligner.leave(CheckpointId(2)) == frozenset()
    assert barrier(aligner, A, 2) == []


def test_aborting_out_of_order_remembers_every_checkpoint() -> None:
    aligner = aligner_of(A, B)
    aligner.on_aborted(CheckpointId(2))
    aligner.on_aborted(CheckpointId(1))

    assert barrier(aligner, A, 2) == []


def test_aborting_twice_is_harmless() -> None:
    aligner = aligner_of(A, B)
    barrier(aligner, A, 1)
    aligner.on_aborted(CheckpointId(1))

    assert aligner.on_aborted(CheckpointId(1)) == []


def test_aborting_a_checkpoint_after_its_snapshot_changes_nothing() -> None:
    aligner = aligner_of(A)
    barrier(aligner, A, 1)

    assert aligner.on_aborted(CheckpointId(1)) == []
    assert barrier(aligner, A, 2) == [Block(A), Snapshot(CheckpointId(2)), Resume(frozenset({A}))]


def test_names_the_aligning_checkpoint_only_during_the_alignment() -> None:
    aligner = aligner_of(A, B)
    before = aligner.aligning_id
    barrier(aligner, A, 4)
    during = aligner.aligning_id
    barrier(aligner, B, 4)

    assert (before, during, aligner.aligning_id) == (None, CheckpointId(4), None)


@pytest.mark.parametrize(
    ("history", "culprit"),
    [
        pytest.param([(A, 1)], (A, 2), id="delivers while blocked"),
        pytest.param([(A, 1), (B, 1)], (A, 1), id="repeats a barrier"),
        pytest.param([], (ChannelId("z"), 1), id="is not an input"),
    ],
)
def test_an_impossible_delivery_is_reported_not_absorbed(
    history: list[tuple[ChannelId, int]], culprit: tuple[ChannelId, int]
) -> None:
    aligner = aligner_of(A, B)
    for channel, checkpoint_id in history:
        barrier(aligner, channel, checkpoint_id)

    with pytest.raises(InvariantViolated):
        barrier(aligner, *culprit)


def test_an_input_ends_once_and_never_while_it_is_blocked() -> None:
    aligner = aligner_of(A, B, C)
    aligner.on_end(C)
    barrier(aligner, A, 1)

    with pytest.raises(InvariantViolated):
        aligner.on_end(C)
    with pytest.raises(InvariantViolated):
        aligner.on_end(A)


def aligner_of(*inputs: ChannelId) -> BarrierAligner:
    return BarrierAligner(inputs)


def barrier(aligner: BarrierAligner, channel: ChannelId, number: int) -> list[AlignmentEffect]:
    return aligner.on_barrier(channel, CheckpointId(number))


def random_stream(rng: random.Random, name: str) -> list[str | int]:
    stream: list[str | int] = []
    for number in (1, 2, 3):
        stream += [f"{name}{number}.{i}" for i in range(rng.randint(0, 4))] + [number]
    return [*stream, *(f"{name}4.{i}" for i in range(rng.randint(0, 2)))]


def records_before(streams: Streams, number: int) -> set[str]:
    prefixes = (takewhile(lambda e: e != number, stream) for stream in streams.values())
    return {e for prefix in prefixes for e in prefix if isinstance(e, str)}


class Host:
    """Carries out an aligner's effects over one interleaving and notes what each cut covers."""

    def __init__(self, streams: Streams) -> None:
        self.aligner = BarrierAligner(ChannelId(name) for name in streams)
        self.queues = {ChannelId(name): list(stream) for name, stream in streams.items()}
        self.blocked: set[ChannelId] = set()
        self.consumed: set[str] = set()
        self.snapshots: dict[int, set[str]] = {}
        self.aborted: list[int] = []
        self.given_up_before_cut: set[int] = set()

    def run(self, rng: random.Random, give_up: Set[int] = frozenset()) -> None:
        """The coordinator aborts `give_up` in any order, while other checkpoints are under way."""
        pending = rng.sample(sorted(give_up), len(give_up))
        while ready := self._ready():
            if pending and rng.random() < 0.2:
                self._give_up(pending.pop())
                continue
            channel = rng.choice(ready)
            self._deliver(channel, self.queues[channel].pop(0))
        for number in pending:
            self._give_up(number)

    def _ready(self) -> list[ChannelId]:
        return [name for name, queue in self.queues.items() if queue and name not in self.blocked]

    def _give_up(self, number: int) -> None:
        if number not in self.snapshots:
            self.given_up_before_cut.add(number)
        self._carry_out(self.aligner.on_aborted(CheckpointId(number)))

    def _deliver(self, channel: ChannelId, element: str | int) -> None:
        assert channel not in self.blocked
        if isinstance(element, str):
            self.consumed.add(element)
        else:
            self._carry_out(self.aligner.on_barrier(channel, CheckpointId(element)))

    def _carry_out(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            match effect:
                case Block(channel):
                    self.blocked.add(channel)
                case Resume(channels):
                    assert channels <= self.blocked
                    self.blocked -= channels
                case Snapshot(checkpoint_id):
                    assert checkpoint_id not in self.snapshots
                    self.snapshots[checkpoint_id] = set(self.consumed)
                case Abort(checkpoint_id):
                    assert checkpoint_id in self.given_up_before_cut
