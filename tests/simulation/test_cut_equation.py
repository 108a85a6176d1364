"""The cut equation on a small dataflow: sources, a two-input count and sinks under random faults.

A seed fixes the logs, the parallelism of every attempt, the order of all deliveries, lost replies,
failed publications and kills. Channels are FIFO and everything else is not. The checkers are apart
from the host: they know the logs only, and hold them against what was stored and committed.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId, Uid
from pipelines.domain.snapshots import OperatorSnapshot, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.alignment import BarrierAligner
from pipelines.protocol.checkpoint_effects import (
    AbortCheckpoint,
    Complete,
    CoordinationEffect,
    DiscardLate,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.commit import CommitLog, Prepared
from pipelines.protocol.coordination import CheckpointCoordinator
from pipelines.protocol.effects import Abort, AlignmentEffect, Block, Resume, Snapshot
from pipelines.protocol.triggering import PERIODIC, TriggerRequest

FAULTY_STEPS = 1_000
STEPS_MAX = 20_000
KEYS = 4
SAVEPOINT = TriggerRequest(CheckpointKind.SAVEPOINT)
REQUESTS = [PERIODIC, PERIODIC, SAVEPOINT]

Logs = list[list[int]]  # the keys that each source reads, by offset
Counts = Counter[tuple[int, int]]  # by (port, key)


@dataclass(frozen=True)
class Record:
    source: int
    offset: int
    key: int
    count: int = 0  # how many of its key came through its port, itself included


@dataclass(frozen=True)
class Barrier:
    number: CheckpointId


@dataclass(frozen=True)
class End:
    pass


@dataclass(frozen=True)
class Transaction:
    name: int  # committing one name twice is harmless, as in every real sink
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Stored:
    """What a completed checkpoint holds."""

    offsets: dict[int, int]
    counts: Counts
    prepared: tuple[Prepared, ...]


@pytest.mark.parametrize("seed", range(250))
def test_every_completed_checkpoint_and_all_output_agree_with_the_logs(seed: int) -> None:
    rng = random.Random(seed)
    logs = [
        [rng.randrange(KEYS) for _ in range(rng.randint(40, 100))]
        for _ in range(rng.choice([2, 3]))
    ]
    run = Run(rng, logs)

    for _ in range(FAULTY_STEPS):
        run.step(with_faults=True)
    while not run.is_all_committed() and run.steps < STEPS_MAX:
        run.step(with_faults=False)

    assert_nothing_lost_and_nothing_twice(logs, run.visible)


def test_the_schedules_reach_what_they_are_meant_to_reach() -> None:
    """Kills, aborts and overtaken alignments happen often, or the property above proves little."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        rng = random.Random(seed)
        run = Run(rng, [[rng.randrange(KEYS) for _ in range(80)] for _ in range(3)])
        for _ in range(FAULTY_STEPS):
            run.step(with_faults=True)
        seen += run.seen

    for event in (
        "completed",
        "aborted",
        "killed",
        "alignment given up",
        "released",
        "re-released",
        "subsumed",
        "late",
    ):
        assert seen[event] >= 10, seen
    assert seen["slow savepoint"] >= 2, seen


def assert_state_is_what_the_offsets_imply(logs: Logs, stored: Stored) -> None:
    expected: Counts = Counter()
    for source, offset in stored.offsets.items():
        expected.update((port_of(source), key) for key in logs[source][:offset])
    assert stored.counts == expected


def assert_output_is_what_the_offsets_imply(stored: Stored, visible: list[Record]) -> None:
    """Committed before, or carried by this checkpoint: together the records before the cut."""
    carried = [r for p in stored.prepared for t in p.committables for r in records_of(t)]
    covered = {(record.source, record.offset) for record in [*visible, *carried]}
    assert covered == {(s, n) for s, offset in stored.offsets.items() for n in range(offset)}


def assert_nothing_leaks(newest: Stored, visible: list[Record]) -> None:
    assert all(record.offset < newest.offsets[record.source] for record in visible)


def assert_nothing_lost_and_nothing_twice(logs: Logs, visible: list[Record]) -> None:
    expected = Counter((s, n, key) for s, log in enumerate(logs) for n, key in enumerate(log))
    assert Counter((r.source, r.offset, r.key) for r in visible) == expected
    by_key: dict[tuple[int, int], list[int]] = {}
    for record in visible:
        by_key.setdefault((port_of(record.source), record.key), []).append(record.count)
    for counts in by_key.values():
        assert sorted(counts) == list(range(1, len(counts) + 1))


def port_of(source: int) -> int:
    return source % 2


def records_of(transaction: object) -> tuple[Record, ...]:
    assert isinstance(transaction, Transaction)
    return transaction.records


@dataclass
class Channel:
    name: ChannelId
    queue: deque[Record | Barrier | End] = field(default_factory=deque)


class Subtask:
    """Mail from the coordinator comes in order, but at any time between two elements."""

    def __init__(self, run: "Run", me: SubtaskId) -> None:
        self.run, self.me = run, me
        self.mail: deque[Inject | AbortCheckpoint | Complete] = deque()

    def can_step(self) -> bool:
        return bool(self.mail)

    def step(self) -> None:
        self.on_mail(self.mail.popleft())

    def on_mail(self, mail: Inject | AbortCheckpoint | Complete) -> None:
        raise NotImplementedError

    def acknowledge(self, number: CheckpointId, content: object) -> None:
        operator = OperatorSnapshot(uid=self.me.vertex, positions=content)
        self.run.replies.append(
            (
                number,
                SubtaskSnapshot(
                    vertex=self.me.vertex, subtask=self.me.subtask, operators=[operator]
                ),
            )
        )


class Source(Subtask):
    def __init__(self, run: "Run", index: int, offset: int, outputs: list[Channel]) -> None:
        super().__init__(run, SubtaskId(Uid("source"), index))
        self.index, self.offset, self.outputs = index, offset, outputs
        # One source stays open, so that barriers can always be injected.
        self.ends_early = index > 0 and run.rng.random() < 0.5
        self.has_ended = False

    def can_step(self) -> bool:
        is_at_end = self.offset == len(self.run.logs[self.index])
        return bool(self.mail) or not is_at_end or (self.ends_early and not self.has_ended)

    def step(self) -> None:
        log = self.run.logs[self.index]
        if self.mail and (self.run.rng.random() < 0.5 or self.offset == len(log)):
            return super().step()
        if self.offset < len(log):
            key = log[self.offset]
            self.outputs[key % len(self.outputs)].queue.append(Record(self.index, self.offset, key))
            self.offset += 1
        elif self.ends_early and not self.has_ended:
            self.has_ended = True
            self.send_to_all(End())
        return None

    def on_mail(self, mail: Inject | AbortCheckpoint | Complete) -> None:
        if isinstance(mail, Inject):
            if not self.has_ended:
                self.send_to_all(Barrier(mail.checkpoint_id))
            self.acknowledge(mail.checkpoint_id, self.offset)

    def send_to_all(self, element: Barrier | End) -> None:
        for output in self.outputs:
            output.queue.append(element)


class Aligned(Subtask):
    """A subtask with inputs: obeys the aligner before it takes the next element."""

    def __init__(self, run: "Run", me: SubtaskId, inputs: list[Channel]) -> None:
        super().__init__(run, me)
        self.inputs = inputs
        self.blocked: set[ChannelId] = set()
        self.aligner = BarrierAligner(channel.name for channel in inputs)

    def ready(self) -> list[Channel]:
        return [c for c in self.inputs if c.queue and c.name not in self.blocked]

    def can_step(self) -> bool:
        return bool(self.mail or self.ready())

    def step(self) -> None:
        ready = self.ready()
        if self.mail and (not ready or self.run.rng.random() < 0.3):
            return super().step()
        channel = self.run.rng.choice(ready)
        match channel.queue.popleft():
            case Record() as record:
                self.on_record(record)
            case Barrier(number):
                self.obey(self.aligner.on_barrier(channel.name, number))
            case End():
                self.obey(self.aligner.on_end(channel.name))
        return None

    def on_mail(self, mail: Inject | AbortCheckpoint | Complete) -> None:
        if isinstance(mail, AbortCheckpoint):
            self.obey(self.aligner.on_aborted(mail.checkpoint_id))

    def obey(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            match effect:
                case Block(channel):
                    self.blocked.add(channel)
                case Resume(channels):
                    self.blocked -= channels
                case Snapshot(number):
                    self.on_snapshot(number)
                case Abort():
                    self.run.seen["alignment given up"] += 1

    def on_record(self, record: Record) -> None:
        raise NotImplementedError

    def on_snapshot(self, number: CheckpointId) -> None:
        raise NotImplementedError


class Count(Aligned):
    def __init__(
        self, run: "Run", index: int, counts: Counts, inputs: list[Channel], outputs: list[Channel]
    ) -> None:
        super().__init__(run, SubtaskId(Uid("count"), index), inputs)
        self.counts, self.outputs = counts, outputs

    def on_record(self, record: Record) -> None:
        place = (port_of(record.source), record.key)
        self.counts[place] += 1
        counted = Record(record.source, record.offset, record.key, self.counts[place])
        self.outputs[record.offset % len(self.outputs)].queue.append(counted)

    def on_snapshot(self, number: CheckpointId) -> None:
        for output in self.outputs:
            output.queue.append(Barrier(number))
        self.acknowledge(number, Counter(self.counts))


class Sink(Aligned):
    def __init__(
        self, run: "Run", index: int, restored: tuple[Prepared, ...], inputs: list[Channel]
    ) -> None:
        super().__init__(run, SubtaskId(Uid("sink"), index), inputs)
        self.log = CommitLog(restored)
        self.written: list[Record] = []
        for prepared in self.log.take_restored():
            run.seen["re-released"] += run.commit(prepared)

    def on_record(self, record: Record) -> None:
        self.written.append(record)

    def on_snapshot(self, number: CheckpointId) -> None:
        transactions: list[object] = []
        if self.written:
            transactions.append(Transaction(self.run.next_name(), tuple(self.written)))
        self.written = []
        self.acknowledge(number, self.log.on_prepared(number, transactions))

    def on_mail(self, mail: Inject | AbortCheckpoint | Complete) -> None:
        super().on_mail(mail)
        if isinstance(mail, Complete):
            for prepared in self.log.on_completed(mail.checkpoint_id):
                self.run.seen["released"] += self.run.commit(prepared)


class Run:
    """Hosts the machines over one random schedule, attempt after attempt."""

    def __init__(self, rng: random.Random, logs: Logs) -> None:
        self.rng, self.logs = rng, logs
        self.coordinator = CheckpointCoordinator(first_id=CheckpointId(1), tolerable_failures=3)
        self.stored_id = NO_CHECKPOINT
        self.concurrent_max = rng.randint(1, 4)
        self.stored: Stored | None = None  # of the newest completed checkpoint
        self.visible: list[Record] = []  # the outside world, which survives everything
        self.committed: set[int] = set()
        self.names = 0
        self.steps = 0
        self.seen: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """A new attempt on empty channels, at another parallelism, from the newest point."""
        self.finalizing: Finalize | None = None
        self.pending: dict[CheckpointId, None] = {}  # in the order of their triggers
        self.replies: list[tuple[CheckpointId, SubtaskSnapshot]] = []
        parallelism, sinks = self.rng.randint(1, 3), self.rng.randint(1, 3)
        stored = self.stored or Stored(dict.fromkeys(range(len(self.logs)), 0), Counter(), ())
        to_count = connect("count", len(self.logs), parallelism)
        to_sink = connect("sink", parallelism, sinks)
        self.subtasks: list[Subtask] = [
            *(Source(self, s, stored.offsets[s], to_count[s]) for s in range(len(self.logs))),
            *(
                Count(
                    self,
                    i,
                    Counter(
                        {
                            place: n
                            for place, n in stored.counts.items()
                            if place[1] % parallelism == i
                        }
                    ),
                    [row[i] for row in to_count],
                    to_sink[i],
                )
                for i in range(parallelism)
            ),
        ]
        for i in range(sinks):
            self.subtasks.append(
                Sink(self, i, stored.prepared[i::sinks], [row[i] for row in to_sink])
            )
            if self.rng.random() < 0.05:
                return self.start()  # killed halfway through its recovery
        self.coordinator.on_running(subtask.me for subtask in self.subtasks)
        return None

    def step(self, *, with_faults: bool) -> None:
        self.steps += 1
        chance = self.rng.random()
        if with_faults and chance < 0.002:
            return self.kill()
        pending = tuple(self.pending)
        if with_faults and chance < 0.003 and pending:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
            return self.obey(self.coordinator.on_declined(self.rng.choice(pending), reason, ""))
        if with_faults and chance < 0.004 and pending:
            return self.obey(self.coordinator.on_expired(self.rng.choice(pending)))
        if chance < 0.14 and len(pending) < self.concurrent_max:
            return self.obey(self.coordinator.on_trigger(self.rng.choice(REQUESTS)))
        if chance < 0.30 and self.replies:
            return self.deliver_reply()
        if chance < 0.40 and self.finalizing is not None:
            return self.report(published=not with_faults or self.rng.random() < 0.8)
        able = [subtask for subtask in self.subtasks if subtask.can_step()]
        if able:
            self.rng.choice(able).step()
        return None

    def deliver_reply(self) -> None:
        """Replies come in any order, those of every third checkpoint slowly, and some twice."""
        fast = [reply for reply in self.replies if reply[0] % 3]
        choices = self.replies if self.rng.random() < 0.05 else fast
        if not choices:
            return
        reply = self.rng.choice(choices)
        if self.rng.random() < 0.9:
            self.replies.remove(reply)
        self.obey(self.coordinator.on_acknowledged(*reply))

    def report(self, *, published: bool) -> None:
        finalize, self.finalizing = self.finalizing, None
        assert finalize is not None
        if not published:
            return self.obey(self.coordinator.on_unpublished(finalize.checkpoint_id, "disk full"))
        found = stored_by(finalize)
        assert_state_is_what_the_offsets_imply(self.logs, found)
        if finalize.checkpoint_id > self.stored_id:
            self.stored, self.stored_id = found, finalize.checkpoint_id
            assert_output_is_what_the_offsets_imply(found, self.visible)
        else:
            self.seen["slow savepoint"] += 1
        return self.obey(self.coordinator.on_published(finalize.checkpoint_id))

    def kill(self) -> None:
        """A manifest on its way may still become durable; the coordinator hears that first."""
        self.seen["killed"] += 1
        while self.finalizing is not None:
            self.report(published=self.rng.random() < 0.5)
        self.obey(self.coordinator.on_stopped(CheckpointFailureReason.TASK_FAILURE, "killed"))
        self.start()

    def obey(self, effects: list[CoordinationEffect]) -> None:
        for effect in effects:
            match effect:
                case Finalize():
                    self.finalizing = effect
                case FailAttempt():
                    self.kill()
                case Complete() | AbortCheckpoint():
                    del self.pending[effect.checkpoint_id]
                    self.seen["completed" if isinstance(effect, Complete) else "aborted"] += 1
                    if isinstance(effect, AbortCheckpoint):
                        subsumed = CheckpointFailureReason.CHECKPOINT_SUBSUMED
                        self.seen["subsumed"] += effect.reason is subsumed
                    self.tell_all(effect)
                case Inject():
                    self.pending[effect.checkpoint_id] = None
                    self.tell_all(effect)
                case DiscardLate():
                    self.seen["late"] += 1

    def tell_all(self, mail: Inject | AbortCheckpoint | Complete) -> None:
        for subtask in self.subtasks:
            subtask.mail.append(mail)

    def commit(self, prepared: Prepared) -> int:
        """How many transactions became visible by this."""
        fresh = [t for t in prepared.committables if name_of(t) not in self.committed]
        for transaction in fresh:
            self.committed.add(name_of(transaction))
            self.visible += records_of(transaction)
        assert self.stored is not None
        assert_nothing_leaks(self.stored, self.visible)
        return len(fresh)

    def next_name(self) -> int:
        self.names += 1
        return self.names

    def is_all_committed(self) -> bool:
        return len(self.visible) >= sum(map(len, self.logs))


def connect(name: str, upstream: int, downstream: int) -> list[list[Channel]]:
    return [
        [Channel(ChannelId(f"{u}>{name}[{d}]")) for d in range(downstream)] for u in range(upstream)
    ]


def stored_by(finalize: Finalize) -> Stored:
    offsets: dict[int, int] = {}
    counts: Counts = Counter()
    prepared: list[Prepared] = []
    for snapshot in finalize.snapshots:
        content = snapshot.operators[0].positions
        if isinstance(content, int):
            offsets[snapshot.subtask] = content
        elif isinstance(content, Counter):
            counts += content
        elif isinstance(content, tuple):
            prepared += content
    return Stored(offsets, counts, tuple(prepared))


def name_of(transaction: object) -> int:
    assert isinstance(transaction, Transaction)
    return transaction.name
