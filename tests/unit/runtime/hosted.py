"""One subtask in this process: real gate, channels, chain and store; no slot and no master.

The graph joins two streams, so that the gate has one channel per port. The operator keeps every
record as keyed state, so that a snapshot shows exactly the records before its barrier.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from pipelines.channels.coalescing import Coalescing, InputOfChannel
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.connectors.contract import SinkContext, Superseded
from pipelines.domain.checkpoint_failures import SubtaskPhases
from pipelines.domain.elements import Barrier, Element
from pipelines.domain.faults import FaultPoint
from pipelines.domain.graph import Connection
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RunId, Uid, channel_id
from pipelines.domain.settings import BarrierOptions, CheckpointingMode
from pipelines.domain.snapshots import Json, SubtaskSnapshot
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.feed import Effects, Feed
from pipelines.runtime.subtask.gate_alignment import AlignmentTiming, GateAlignment, handler_for
from pipelines.runtime.subtask.gate_feed import GateFeed
from pipelines.runtime.subtask.mailbox import Mailbox
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords
from pipelines.runtime.subtask.snapshots.restoring import NOTHING, RestoredOperator
from pipelines.runtime.subtask.snapshots.snapshotting import (
    SnapshotWriter,
    SubtaskCut,
    WrittenSnapshot,
)
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.reserving_reader import ReservingReader
from pipelines.runtime.subtask.sources.source_feed import SourceFeed
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.runtime.subtask.work_pieces import WorkPieces
from pipelines.state.backend import BackendFactory, BatchListDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import Environment, Pipeline, Stream, WatermarkStrategy
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock, keys_of
from tests.unit.runtime.growing_log import GrowingLog

LEFT, RIGHT = "left", "right"
SEEN = BatchListDescriptor("seen", SCHEMA, ("key",))
MAX_PARALLELISM = 128
ALIGNED = BarrierOptions(mode=CheckpointingMode.EXACTLY_ONCE)
OVERTAKING = BarrierOptions(mode=CheckpointingMode.EXACTLY_ONCE, unaligned=True)
COUNTED = BarrierOptions(mode=CheckpointingMode.AT_LEAST_ONCE)

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(Executor):
    """Runs each call at once, on the caller's thread."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(call(*args, **kwargs))
        return future


class LaterExecutor(Executor):
    """Runs its calls only when the test says so."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self._waiting.append(partial(call, *args, **kwargs))
        return Future()

    def run_all(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


class WaitsForEver(Exception):
    """A subtask has nothing to do, and nothing more will come."""


class ScriptedMailbox(Mailbox):
    """Runs the next step of a script, on this thread, whenever the subtask has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[Callable[[], None]] = []

    def wait(self, timeout_ms: float) -> None:
        if not self.script:
            raise WaitsForEver
        self.script.pop(0)()


@dataclass(slots=True)
class RecordingReporter:
    """Records everything that a subtask reports."""

    root: Path
    snapshots: dict[int, SubtaskSnapshot] = field(default_factory=dict)
    phases: dict[int, SubtaskPhases] = field(default_factory=dict)
    declines: list[tuple[int, Exception]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    sources_over: int = 0
    reservations_wanted: int = 0
    failures: list[BaseException] = field(default_factory=list)
    has_ended: bool = False

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None:
        self.snapshots[checkpoint_id] = snapshot
        self.phases[checkpoint_id] = phases

    def declined(self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception) -> None:
        self.declines.append((checkpoint_id, error))

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None:
        self.commits.append(checkpoint_id)

    def sources_ended(self, place: ChainPlace) -> None:
        self.sources_over += 1

    def reservation_wanted(self, place: ChainPlace) -> None:
        self.reservations_wanted += 1

    def failed(self, place: ChainPlace, error: BaseException) -> None:
        self.failures.append(error)

    def ended(self, place: ChainPlace) -> None:
        self.has_ended = True

    def reach(self, point: FaultPoint) -> None:
        pass

    def location_of(self, checkpoint_id: CheckpointId) -> str:
        return str(self.root / f"chk-{checkpoint_id}")


class LocatedWriter(SnapshotWriter):
    """Takes the location from the reporter if a barrier has none, as in many tests."""

    def __init__(self, reporter: RecordingReporter) -> None:
        super().__init__(FileSystemCheckpointStore([str(reporter.root)]))
        self._located = reporter.location_of

    def write(
        self,
        cut: SubtaskCut,
        checkpoint_id: CheckpointId,
        location: str,
        *,
        open_format: bool,
        in_flight: Sequence[InFlightRecords] = (),
    ) -> WrittenSnapshot:
        return super().write(
            cut,
            checkpoint_id,
            location or self._located(checkpoint_id),
            open_format=open_format,
            in_flight=in_flight,
        )


class Remembering(Operator):
    """Passes every record on, keeps it as state, and counts the records of each port."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._seen = context.state.batch_list(SEEN)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._seen.append(0, batch)
        self.context.count(f"port_{port}", batch.num_rows)
        self.context.collect(batch)


@dataclass(slots=True)
class MemorySink:
    """A sink that keeps the written and the committed keys, each in order."""

    written: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    rewound_to: list[tuple[list[tuple[RunId, CheckpointId]], RunId]] = field(default_factory=list)
    guarantee: str = "exactly-once"
    _unprepared: list[int] = field(default_factory=list)

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "MemorySink":
        return self

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        self.rewound_to.append((ancestors, run_id))
        return Superseded(items=2, moved_to="aside")

    def write(self, batch: pa.RecordBatch) -> None:
        self.written += keys_of(batch)
        self._unprepared += keys_of(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        prepared: list[Json] = list(self._unprepared)
        self._unprepared = []
        return prepared

    def commit(self, checkpoint_id: CheckpointId, committables: list[Any]) -> None:
        self.committed += committables

    def close(self) -> None:
        pass


@dataclass(slots=True)
class RecordingOutput:
    channel: ChannelId
    sent: list[Element] = field(default_factory=list)
    is_full: bool = False
    sent_bytes: int = 0

    def send(self, element: Element) -> None:
        self.sent.append(element)

    def flush(self) -> bool:
        return not self.is_full

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        self.sent.append(barrier)
        return []

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        return False

    def on_available(self, wake: Callable[[], None]) -> None:
        wake()


def joining_pipeline(
    source: ListSource | GrowingLog, sink: MemorySink, create: Callable[[], Operator] = Remembering
) -> Pipeline:
    env = Environment(max_parallelism=MAX_PARALLELISM)
    inputs = tuple(Connection(env.source(source, uid=uid).node, ("key",)) for uid in (LEFT, RIGHT))
    both = env.add_operator("both", create, inputs)
    Stream(env, both, "at").sink(sink, uid="out")
    return env.build()


@dataclass(slots=True)
class JoiningSubtask:
    """The only subtask of the joining vertex, with the writing ends of its two channels."""

    root: Path
    clock: ManualClock = field(default_factory=ManualClock)
    sink: MemorySink = field(default_factory=MemorySink)
    channels: dict[str, ChannelId] = field(init=False)
    inputs: dict[str, LocalOutput] = field(init=False)
    gate: Gate = field(init=False)
    feed: GateFeed = field(init=False)
    mailbox: ScriptedMailbox = field(default_factory=ScriptedMailbox)
    options: BarrierOptions = ALIGNED
    in_flight: Iterable[tuple[int, pa.RecordBatch]] = ()
    operator: Callable[[], Operator] = Remembering
    coalesced_rows: int = 1
    longest_work_ms: float = 0
    uploads: Executor = field(default_factory=InlineExecutor)
    uploads_starve: bool = False
    backends: BackendFactory = HashMapBackend
    subtask: Subtask = field(init=False)
    reporter: RecordingReporter = field(init=False)

    def __post_init__(self) -> None:
        both = Uid("both")
        self.channels = {
            uid: channel_id(Uid(uid), 0, both, port, 0) for port, uid in enumerate((LEFT, RIGHT))
        }
        self.inputs = {uid: LocalOutput(channel) for uid, channel in self.channels.items()}
        ports = {channel: port for port, channel in enumerate(self.channels.values())}
        self.gate = Gate(list(ports))
        for output in self.inputs.values():
            output.on_gate(self.gate)
        pipeline = joining_pipeline(ListSource([]), self.sink, self.operator)
        handler = handler_for(self.options, pipeline.graph.vertex(both), ports)
        timing = AlignmentTiming(self.clock)
        alignment = GateAlignment(self.gate, handler, self.options, timing)
        inputs = {channel: InputOfChannel(port, "at") for channel, port in ports.items()}
        coalescing = Coalescing(inputs, self.coalesced_rows)
        pieces = WorkPieces(self.clock.monotonic_ms, self.longest_work_ms)
        self.feed = GateFeed(self.gate, coalescing, alignment, None, self.in_flight, pieces)
        self.reporter = RecordingReporter(self.root)
        self.subtask = subtask_of(
            pipeline,
            both,
            self.feed,
            self.reporter,
            self.clock,
            {},
            self.mailbox,
            self.options,
            uploads=self.uploads,
            uploads_starve=lambda: self.uploads_starve,
            backends=self.backends,
        )

    def run(self, *script: Callable[[], None]) -> None:
        """Runs the subtask's whole life on this thread; the script sends its input."""
        self.mailbox.script = list(script)
        self.subtask.run()

    def consume(self) -> None:
        """Consumes everything that the gate gives now."""
        while self.step():
            continue

    def step(self) -> bool:
        attended = self.feed.attend()
        return obeyed(self.subtask, self.feed.advance() if attended is None else attended)

    def advance(self) -> bool:
        return obeyed(self.subtask, self.feed.advance())

    def in_flight_at(self, checkpoint_id: int) -> dict[str, list[int]]:
        """Returns the keys of a checkpoint's in-flight records by channel, read from its files."""
        location = self.reporter.location_of(CheckpointId(checkpoint_id))
        store = FileSystemCheckpointStore([str(self.root)])
        kept: dict[str, list[int]] = {}
        for handle in self.reporter.snapshots[checkpoint_id].in_flight:
            for batch in store.read_batches(location, handle.file):
                kept.setdefault(handle.channel, []).extend(keys_of(batch))
        return kept

    def seen_at(self, checkpoint_id: int) -> list[int]:
        """Returns the keys in the operator's state, read back from a checkpoint's files."""
        location = str(self.reporter.location_of(CheckpointId(checkpoint_id)))
        store = FileSystemCheckpointStore([str(self.root)])
        return [
            key
            for operator in self.reporter.snapshots[checkpoint_id].operators
            for state in operator.states
            for batch in store.read_batches(location, state.file)
            for key in keys_of(batch)
        ]


@dataclass(slots=True)
class ReadingSubtask:
    """A source's subtask, and the elements that it has sent downstream."""

    root: Path
    source: ListSource | GrowingLog
    clock: ManualClock = field(default_factory=ManualClock)
    output: Any = field(default_factory=lambda: RecordingOutput(ChannelId("out")))
    mailbox: Mailbox = field(default_factory=Mailbox)
    options: BarrierOptions = ALIGNED
    strategy: WatermarkStrategy | None = None
    reads_ahead_bytes: int | None = None  # set in mode AT_MOST_ONCE
    feed: SourceFeed = field(init=False)
    subtask: Subtask = field(init=False)
    reporter: RecordingReporter = field(init=False)

    def __post_init__(self) -> None:
        reader = DirectReader(
            source=self.source,
            restored=(),
            subtask=0,
            parallelism=1,
            clock=self.clock,
            event_hours_per_s=None,
            strategy=self.strategy,
        )
        ahead_bytes = self.reads_ahead_bytes
        pipeline = joining_pipeline(self.source, MemorySink())
        self.feed = SourceFeed(
            place_of(pipeline, Uid(LEFT)),
            reader if ahead_bytes is None else ReservingReader(reader, ahead_bytes),
            self.clock,
            reader.progress_reporter,
        )
        self.reporter = RecordingReporter(self.root)
        exchanges = {Uid(LEFT): [Exchange(("key",), [self.output], MAX_PARALLELISM)]}
        self.subtask = subtask_of(
            pipeline,
            Uid(LEFT),
            self.feed,
            self.reporter,
            self.clock,
            exchanges,
            self.mailbox,
            self.options,
        )

    def advance(self) -> bool:
        return obeyed(self.subtask, self.feed.advance())

    def on_injected(self, barrier: Barrier) -> None:
        self.subtask.obey(self.feed.on_injected(barrier))

    def on_completed(self, checkpoint_id: int) -> None:
        self.subtask.obey(self.feed.on_completed(CheckpointId(checkpoint_id)))

    def on_aborted(self, checkpoint_id: int) -> None:
        self.subtask.obey(self.feed.on_aborted(CheckpointId(checkpoint_id)))


def obeyed(subtask: Subtask, effects: Effects | None) -> bool:
    """Has the subtask obey the effects of its feed. Returns False if the feed had nothing to do."""
    subtask.obey(effects or [])
    return effects is not None


def place_of(pipeline: Pipeline, vertex: Uid) -> ChainPlace:
    graph = pipeline.graph
    return ChainPlace(RunId("run-1"), Attempt(1), graph.vertex(vertex), 0, 1, MAX_PARALLELISM)


def subtask_of(
    pipeline: Pipeline,
    vertex: Uid,
    feed: Feed,
    reporter: RecordingReporter,
    clock: ManualClock,
    exchanges: dict[Uid, list[Exchange]],
    mailbox: Mailbox,
    options: BarrierOptions = ALIGNED,
    restored: dict[Uid, RestoredOperator] | None = None,
    uploads: Executor | None = None,
    uploads_starve: Callable[[], bool] = lambda: False,
    backends: BackendFactory = HashMapBackend,
) -> Subtask:
    place = place_of(pipeline, vertex)
    restored = restored or dict.fromkeys(place.vertex.nodes, NOTHING)
    chain = OperatorChain(
        pipeline=pipeline,
        place=place,
        backends=backends,
        exchanges=exchanges,
        restored=restored,
        now_ms=clock.wall_ms,
    )
    writer = LocatedWriter(reporter)
    uploads = uploads or InlineExecutor()
    return Subtask(
        place=place,
        chain=chain,
        feed=feed,
        snapshots=writer,
        uploads=uploads,
        uploads_starve=uploads_starve,
        reporter=reporter,
        clock=clock,
        mailbox=mailbox,
        barriers=options,
    )
