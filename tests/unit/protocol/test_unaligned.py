"""Overtaking barriers: consumed plus recorded is always exactly the records before the barriers.

The host here is a gate in miniature: an element is sent, queued and consumed, each at a time of its
own. The host records as the effects say. The checker knows only the streams.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.protocol.alignment import UnalignedBarriers
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    AllArrived,
    Block,
    CancelDownstream,
    Overtake,
    Resume,
    Snapshot,
)

A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")


@dataclass(frozen=True)
class Mark:
    number: int
    overtakes: bool


Element = str | Mark


@pytest.mark.parametrize("seed", range(120))
def test_state_and_channel_state_are_exactly_the_records_before_the_barriers(seed: int) -> None:
    rng = random.Random(seed)
    streams = {ChannelId(n): random_stream(rng, n) for n in "abc"[: rng.randint(1, 3)]}

    gate = MiniatureGate(streams)
    gate.run(rng)

    assert gate.consumed == {e for s in streams.values() for e in s if isinstance(e, str)}
    assert not gate.blocked
    assert gate.recording is None
    assert set(gate.cuts) == {1, 2, 3}
    for number, cut in gate.cuts.items():
        assert cut == Counter(records_before(streams, number)), number


@pytest.mark.parametrize("seed", range(80))
def test_checkpoints_aborted_at_any_moment_leave_the_others_exact(seed: int) -> None:
    rng = random.Random(seed)
    streams = {ChannelId(n): random_stream(rng, n) for n in "abc"[: rng.randint(1, 3)]}

    gate = MiniatureGate(streams)
    gate.run(rng, give_up_chance=0.1)

    assert gate.consumed == {e for s in streams.values() for e in s if isinstance(e, str)}
    assert not gate.blocked
    assert set(gate.cuts) | gate.given_up == {1, 2, 3}
    for number, cut in gate.cuts.items():
        assert cut == Counter(records_before(streams, number)), number


def test_the_random_schedules_reach_aligned_and_unaligned_snapshots() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        gate = MiniatureGate({ChannelId(n): random_stream(rng, n) for n in "abc"})
        gate.run(rng)
        seen += gate.seen

    for way in ("aligned", "overtaken", "turned while aligning", "recorded on arrival"):
        assert seen[way] >= 10, seen


def test_barriers_that_may_not_overtake_are_aligned() -> None:
    machine = UnalignedBarriers([A, B])

    assert machine.on_announced(A, CheckpointId(1), overtakes=False) == []
    assert machine.on_barrier(A, CheckpointId(1)) == [Block(A)]
    assert machine.on_barrier(B, CheckpointId(1)) == [
        Block(B),
        Snapshot(CheckpointId(1)),
        Resume(frozenset({A, B})),
    ]
    assert machine.on_time_is_up(CheckpointId(1)) == [], "it was in time"


def test_the_first_overtaking_barrier_snapshots_and_the_others_are_awaited() -> None:
    machine = UnalignedBarriers([A, B])

    first = machine.on_announced(A, CheckpointId(1), overtakes=True)
    assert first == [Overtake(CheckpointId(1), frozenset({A, B}))]
    assert machine.recording_id == 1
    assert machine.on_announced(B, CheckpointId(1), overtakes=True) == [AllArrived(CheckpointId(1))]
    assert machine.on_barrier(A, CheckpointId(1)) + machine.on_barrier(B, CheckpointId(1)) == []


def test_an_alignment_that_times_out_turns_unaligned_and_unblocks_its_inputs() -> None:
    machine = UnalignedBarriers([A, B, C])
    machine.on_barrier(A, CheckpointId(1))
    machine.on_announced(B, CheckpointId(1), overtakes=False)

    assert machine.on_time_is_up(CheckpointId(1)) == [
        Overtake(CheckpointId(1), frozenset({B, C})),
        Resume(frozenset({A})),
    ]
    assert machine.on_barrier(B, CheckpointId(1)) == [], "its place is known since it was announced"
    assert machine.on_announced(C, CheckpointId(1), overtakes=False) == [
        AllArrived(CheckpointId(1))
    ]


def test_the_end_of_the_last_awaited_input_completes_the_channel_state() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_announced(A, CheckpointId(1), overtakes=True)

    assert machine.on_end(B) == [AllArrived(CheckpointId(1))]


def test_aborting_a_checkpoint_drops_its_recording() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_announced(A, CheckpointId(1), overtakes=True)

    assert machine.on_aborted(CheckpointId(1)) == [Abort(CheckpointId(1))]
    assert machine.on_announced(B, CheckpointId(1), overtakes=True) == []
    assert machine.recording_id is None


def test_aborting_an_older_checkpoint_does_not_disturb_the_recording() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_announced(A, CheckpointId(2), overtakes=True)

    assert machine.on_aborted(CheckpointId(1)) == []
    assert machine.recording_id == 2


@pytest.mark.parametrize("overtakes", [True, False])
def test_a_newer_barrier_drops_an_unfinished_recording(overtakes: bool) -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_announced(A, CheckpointId(1), overtakes=True)

    if overtakes:
        effects = machine.on_announced(A, CheckpointId(2), overtakes=True)
        assert effects == [Abort(CheckpointId(1)), Overtake(CheckpointId(2), frozenset({A, B}))]
    else:
        assert machine.on_barrier(A, CheckpointId(2)) == [Abort(CheckpointId(1)), Block(A)]


def test_an_overtaking_barrier_ends_an_older_alignment() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_barrier(A, CheckpointId(1))

    assert machine.on_announced(B, CheckpointId(2), overtakes=True) == [
        Abort(CheckpointId(1)),
        Resume(frozenset({A})),
        Overtake(CheckpointId(2), frozenset({A, B})),
    ]


def test_a_cancellation_unblocks_the_inputs_and_is_sent_downstream() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_barrier(A, CheckpointId(1))

    assert machine.on_cancelled(B, CheckpointId(1)) == [
        Abort(CheckpointId(1)),
        Resume(frozenset({A})),
        CancelDownstream(CheckpointId(1)),
    ]
    assert machine.on_announced(A, CheckpointId(1), overtakes=True) == []


def test_a_cancellation_after_the_snapshot_only_ends_the_recording() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_announced(A, CheckpointId(1), overtakes=True)

    assert machine.on_cancelled(B, CheckpointId(1)) == [Abort(CheckpointId(1))]
    assert machine.on_cancelled(B, CheckpointId(1)) == []


def test_an_impossible_event_is_reported_not_absorbed() -> None:
    machine = UnalignedBarriers([A, B])

    with pytest.raises(InvariantViolated, match="announced"):
        machine.on_time_is_up(CheckpointId(1))


def test_an_announcement_after_the_end_of_its_channel_has_no_effect() -> None:
    machine = UnalignedBarriers([A, B])
    machine.on_barrier(A, CheckpointId(1))
    machine.on_barrier(B, CheckpointId(1))
    machine.on_end(A)

    assert machine.on_announced(A, CheckpointId(1), overtakes=True) == []


@dataclass
class MiniatureGate:
    """A gate with three places per channel: sent, queued, consumed."""

    streams: dict[ChannelId, list[Element]]
    machine: UnalignedBarriers = field(init=False)
    consumed: set[str] = field(default_factory=set)
    blocked: set[ChannelId] = field(default_factory=set)
    cuts: dict[int, Counter[str]] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    recording: int | None = None
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.machine = UnalignedBarriers(self.streams)
        self.sent = {channel: list(stream) for channel, stream in self.streams.items()}
        self.queues: dict[ChannelId, list[Element]] = {channel: [] for channel in self.streams}
        self.awaited: set[ChannelId] = set()
        self.state: Counter[str] = Counter()

    def run(self, rng: random.Random, give_up_chance: float = 0.0) -> None:
        """Runs until no element is on its way. Checkpoint 2 starts only when 1 is over."""
        under_way = 1
        while True:
            is_over = {*self.cuts, *self.given_up}
            while under_way in is_over and under_way < 3:
                under_way += 1
            travelling = [c for c, s in self.sent.items() if s and self.may_travel(s[0], under_way)]
            ready = [c for c, q in self.queues.items() if q and c not in self.blocked]
            if not travelling and not ready:
                return
            chance = rng.random()
            if under_way not in is_over and chance < give_up_chance:
                self.given_up.add(under_way)
                self.obey(self.machine.on_aborted(CheckpointId(under_way)))
            elif self.machine.aligning_id is not None and chance < 0.15:
                self.seen["turned while aligning"] += 1
                self.obey(self.machine.on_time_is_up(self.machine.aligning_id))
            elif travelling and (not ready or rng.random() < 0.5):
                self.arrive(rng.choice(travelling))
            else:
                self.consume(rng.choice(ready))

    def may_travel(self, element: Element, under_way: int) -> bool:
        return isinstance(element, str) or element.number <= under_way

    def arrive(self, channel: ChannelId) -> None:
        element = self.sent[channel].pop(0)
        self.queues[channel].append(element)
        if isinstance(element, str):
            if channel in self.awaited:
                self.seen["recorded on arrival"] += 1
                self.state[element] += 1
            return
        if element.number == self.recording:
            self.awaited.discard(channel)
        self.obey(
            self.machine.on_announced(
                channel, CheckpointId(element.number), overtakes=element.overtakes
            )
        )

    def consume(self, channel: ChannelId) -> None:
        element = self.queues[channel].pop(0)
        if isinstance(element, str):
            self.consumed.add(element)
        else:
            self.obey(self.machine.on_barrier(channel, CheckpointId(element.number)))

    def obey(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            match effect:
                case Block(channel):
                    self.blocked.add(channel)
                case Resume(channels):
                    self.blocked -= channels
                case Snapshot(number):
                    self.seen["aligned"] += 1
                    self.cuts[number] = Counter(self.consumed)
                case Overtake(number, unread):
                    self.seen["overtaken"] += 1
                    self.overtake(number, unread)
                case AllArrived(number):
                    assert not self.awaited
                    self.cuts[number] = self.state
                    self.recording = None
                case Abort():
                    self.recording, self.awaited = None, set()
                case CancelDownstream():
                    pytest.fail("nobody sends cancellations here")

    def overtake(self, number: int, unread: frozenset[ChannelId]) -> None:
        self.recording, self.state, self.awaited = number, Counter(self.consumed), set()
        for channel in unread:
            queue = self.queues[channel]
            places = [i for i, e in enumerate(queue) if isinstance(e, Mark) and e.number == number]
            before = queue[: places[0]] if places else queue
            self.state.update(e for e in before if isinstance(e, str))
            if not places:
                self.awaited.add(channel)


def random_stream(rng: random.Random, name: str) -> list[Element]:
    stream: list[Element] = []
    for number in (1, 2, 3):
        stream += [f"{name}{number}.{i}" for i in range(rng.randint(0, 4))]
        stream.append(Mark(number, overtakes=rng.random() < 0.3))
    return stream


def records_before(streams: dict[ChannelId, list[Element]], number: int) -> list[str]:
    found: list[str] = []
    for stream in streams.values():
        for element in stream:
            if isinstance(element, Mark) and element.number == number:
                break
            if isinstance(element, str):
                found.append(element)
    return found
