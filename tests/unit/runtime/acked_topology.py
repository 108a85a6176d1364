"""Subtasks and ackers of a whole run in mode ACKED, in turns on one thread, without sockets.

A source filters out some records, keys the others to a relay, and the relay deals them in turn to
sinks. A seed decides which task has its turn. No test sleeps.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.channels.channel import Output
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput, RegisteredGates
from pipelines.domain.checkpoint_failures import SubtaskPhases
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RunId, Uid
from pipelines.domain.settings import (
    AckingOptions,
    BarrierOptions,
    CheckpointingMode,
    StateBackendType,
    StateOptions,
)
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.operators.operator import Operator
from pipelines.operators.stateless import BatchFunction
from pipelines.runtime.control import Deploy
from pipelines.runtime.slot.subtask_building import AckingWires, SubtaskBuilder
from pipelines.runtime.subtask.acking.acker_task import AckerTask
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import Environment, Pipeline, Stream
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock
from tests.unit.runtime.hosted import (
    MAX_PARALLELISM,
    InlineExecutor,
    MemorySink,
    RecordingReporter,
)

SOURCE, RELAY, SINK = Uid("in"), Uid("relay"), Uid("out")
TIMEOUT_MS = 10_000
IN_MEMORY = StateOptions(
    backend=StateBackendType.HASHMAP,
    is_incremental=False,
    rocksdb_memory_bytes=1 << 20,
    rocksdb_directory="",
)

Mapping = Callable[[pa.RecordBatch], pa.RecordBatch]


class LocalNetwork:
    """Every channel is a queue of this process."""

    def __init__(self) -> None:
        self._gates = RegisteredGates()

    def output(self, channel: ChannelId, slot: int) -> Output:
        output = LocalOutput(channel)
        self._gates.bind(channel, output)
        return output

    def register_gate(self, gate: Gate) -> None:
        self._gates.register(gate)


@dataclass(slots=True)
class CuttingReporter(RecordingReporter):
    """A reporter that keeps the cuts of all subtasks."""

    cuts: dict[int, list[SubtaskSnapshot]] = field(default_factory=lambda: defaultdict(list))

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None:
        self.cuts[checkpoint_id].append(snapshot)


@dataclass
class Topology:
    """A whole run that reads these keys from four splits."""

    root: Path
    keys: range
    parallelism: int = 2
    ackers: int = 2
    pending: int = 1_000
    relay: Callable[[], Operator] = field(
        default=lambda: BatchFunction(lambda batch: batch, SCHEMA)
    )
    seed: int = 0
    turn_ms: float = 0.0  # how long a turn takes
    unanchored: str = ""  # the uid of the operator with unanchored output
    clock: ManualClock = field(default_factory=ManualClock)
    sink: MemorySink = field(default_factory=MemorySink)
    subtasks: list[Subtask] = field(default_factory=list)
    acker_tasks: list[AckerTask] = field(default_factory=list)
    asleep: set[Uid] = field(default_factory=set)  # vertices that get no turn

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.reporter = CuttingReporter(self.root)
        network = LocalNetwork()
        for slot in range(self.parallelism):
            self._add_slot(slot, self._pipeline(), network)

    @property
    def kept(self) -> list[int]:
        """The keys that the filter lets through."""
        return [key for key in self.keys if key % 5 != 2]

    def run(self, is_over: Callable[[], bool], turns_max: int = 20_000) -> None:
        for _ in range(turns_max):
            if is_over():
                return
            self.turn()
        raise TimeoutError(f"not over after {turns_max} turns")

    def run_out(self) -> None:
        """Runs until everything is read and processed."""
        self.run(lambda: self.reporter.sources_over == self.parallelism)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def turn(self) -> None:
        """Gives one subtask or acker, chosen at random, a turn."""
        self.clock.now_ms += self.turn_ms
        awake = [s for s in self.subtasks if s.place.vertex.uid not in self.asleep]
        taken = self._rng.choice([*awake, *self.acker_tasks])
        if isinstance(taken, Subtask):
            taken.take_turn()
        else:
            taken.step()
        if self.reporter.failures:
            raise self.reporter.failures[0]

    def sources(self) -> list[Subtask]:
        return [subtask for subtask in self.subtasks if subtask.place.vertex.uid == SOURCE]

    def count(self, name: str) -> int:
        """Returns the sum of a counter over all subtasks."""
        counted = [subtask.chain.counters for subtask in self.subtasks]
        return sum(v for counters in counted for k, v in counters.items() if k.endswith(f".{name}"))

    def _pipeline(self) -> Pipeline:
        wanted = pa.array(self.kept)
        splits = [[(key, key) for key in self.keys[i::4]] for i in range(4)]
        env = Environment(max_parallelism=MAX_PARALLELISM)
        numbers = env.source(ListSource(splits, batch_rows=7), uid=SOURCE)
        numbers = self._anchored(numbers)
        kept = numbers.filter(lambda batch: pc.is_in(batch["key"], wanted), uid="kept")
        keyed = self._anchored(kept).connection(("key",))
        relay = env.add_operator(RELAY, self.relay, (keyed,))
        relayed = self._anchored(Stream(env, relay, "at"))
        relayed.rebalance().sink(self.sink, uid=SINK)
        return env.build()

    def _anchored(self, stream: Stream) -> Stream:
        return stream.unanchored() if stream.node == self.unanchored else stream

    def _add_slot(self, slot: int, pipeline: Pipeline, network: LocalNetwork) -> None:
        options = AckingOptions(
            acker_count=self.ackers, timeout_ms=TIMEOUT_MS, pending_max=self.pending
        )
        wires = AckingWires(
            options=options,
            graph=pipeline.graph,
            parallelism=self.parallelism,
            attempt=Attempt(1),
            subtask=slot,
            network=network,  # type: ignore[arg-type]
            clock=self.clock,
        )
        builder = SubtaskBuilder(
            message=_deployed(self.root, self.parallelism, options),
            pipeline=pipeline,
            store=FileSystemCheckpointStore([str(self.root)]),
            point=None,
            attempt=Attempt(1),
            subtask=slot,
            network=network,  # type: ignore[arg-type]
            reporter=self.reporter,
            clock=self.clock,
            backends=HashMapBackend,
            wires=wires,
        )
        built = [builder.build(vertex, InlineExecutor()) for vertex in pipeline.graph.vertices]
        self.subtasks += [one.subtask for one in built]
        self.acker_tasks += wires.ackers()


def _deployed(root: Path, parallelism: int, options: AckingOptions) -> Deploy:
    return Deploy(
        run_id=RunId("run-1"),
        pipeline="acked",
        parameters={},
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        peers=[],
        storage_roots=[str(root)],
        max_memory_state_bytes=0,
        compresses_snapshots=False,
        digests_output=True,
        restore_location=None,
        restore_manifest=None,
        barriers=BarrierOptions(mode=CheckpointingMode.ACKED),
        acking=options,
        state=IN_MEMORY,
    )
