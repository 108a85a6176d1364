"""Points that hold a state of every kind, as either backend writes them, in any store.

The flow `held` keeps a value, a list, a map, a reducing and an aggregating state per user, and a
list as operator state. A point contains the state of its one subtask after `USERS` records.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from pipelines.connectors.in_process import BlackHole
from pipelines.connectors.split_progress import initial
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid, channel_id
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FORMAT_VERSION, FileHandle, Manifest, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind, SavepointFormat
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.rows import Row
from pipelines.runtime.subtask.chains.chain_node import ChainPlace, OperatorCut
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.state.backend import FrozenState, StateBackend
from pipelines.state.descriptors import AggregateFunction
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.store import CheckpointStore
from pipelines.stream import (
    AggregatingStateDescriptor,
    Environment,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    ReducingStateDescriptor,
    RowContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from pipelines.stream.declaration import Flow
from tests.contracts.rocksdb_slots import rocksdb_backends
from tests.own_flows import declare
from tests.unit.runtime.fakes import SCHEMA, ListSource, batch_of

FLOW_NAME = "held"
RUN = RunId("run-held")
NUMBERS, STATES = Uid("numbers"), Uid("states")
USERS = 40
MAX_PARALLELISM = 128
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
KEYED_STATES = ("value", "list", "map", "reducing", "aggregating")
"""The names that the function gives them; lists and maps have a second table each."""
OPERATOR_STATE = "operator.seen"
KINDS = (
    "canonical",
    "native hashmap",
    "native rocksdb",
    "checkpoint hashmap",
    "checkpoint rocksdb",
    "incremental hashmap",
    "incremental rocksdb",
)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Row:
        return {"n": 0, "s": 0}

    def add(self, accumulator: Row, value: int) -> Row:
        return {"n": accumulator["n"] + 1, "s": accumulator["s"] + value}

    def get_result(self, accumulator: Row) -> float:
        return float(accumulator["s"] / accumulator["n"])


class EveryState(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        number = pa.int64()
        mean = pa.struct([("n", number), ("s", number)])
        self._value = runtime.get_state(ValueStateDescriptor("value", number))
        self._list = runtime.get_list_state(ListStateDescriptor("list", number))
        self._map = runtime.get_map_state(MapStateDescriptor("map", number, number))
        self._sum = runtime.get_reducing_state(ReducingStateDescriptor("reducing", add, number))
        self._mean = runtime.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", Mean(), mean)
        )
        self._seen = runtime.get_operator_list_state(ListStateDescriptor("seen", number))

    def process_element(self, row: Row, context: RowContext) -> None:
        key = row["key"]
        self._value.update(key)
        self._list.add(10 * key)
        self._map.put(key, 20 * key)
        self._sum.add(30 * key)
        self._mean.add(40 * key)
        self._seen.add(pa.array([key], pa.int64()))


def add(left: int, right: int) -> int:
    return left + right


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    numbers = env.source(ListSource([]), uid=NUMBERS)
    states = numbers.key_by("key").process(EveryState(), SCHEMA, uid=STATES)
    states.sink(BlackHole(), uid="nowhere")
    return env.build()


FLOW = Flow("held", "A state of every kind, for tests.", (), assemble)
declare(FLOW_NAME, __name__)


@dataclass(frozen=True, slots=True)
class HeldPoint:
    location: str
    manifest: Manifest

    def files_of(self, state: str) -> list[FileHandle]:
        return [
            file
            for subtask in self.manifest.subtasks
            for operator in subtask.operators
            for handle in operator.states
            if handle.state == state
            for file in handle.files
        ]

    def file_named(self, state: str, part: str) -> FileHandle:
        """Returns the state's first file with `part` in its name; "" means records in flight."""
        in_flight = [f.file for s in self.manifest.subtasks for f in s.in_flight]
        files = self.files_of(state) if state else in_flight
        return next(file for file in files if part in file.name)


def hold(store: CheckpointStore, root: str, kind: str) -> HeldPoint:
    """Writes a complete point of `kind` below `root`, with the code that writes any snapshot."""
    pipeline = assemble({})
    form, _, backend_name = kind.partition(" ")
    with _backend(backend_name, is_incremental=form == "incremental") as backend:
        operator, context = _opened(pipeline, backend)
        operator.on_batch(0, batch_of([(key, key) for key in range(USERS)]))
        if form == "incremental":
            first = _cut_of(form, backend, CheckpointId(1))
            _write(store, f"{root}/chk-1", pipeline, context, first, form)
            backend.on_checkpoint_completed(CheckpointId(1))
            operator.on_batch(0, batch_of([(0, 0), (1, 1)]))
        is_savepoint = form in ("canonical", "native")
        location = f"{root}/savepoint-held-2" if is_savepoint else f"{root}/chk-2"
        cut = _cut_of(form, backend, CheckpointId(2))
        snapshot = _write(store, location, pipeline, context, cut, form)
    manifest = _manifest(pipeline, snapshot, form)
    store.publish(location, manifest)
    return HeldPoint(location, manifest)


class HeldRun:
    """A run whose one subtask takes incremental checkpoints, into any store."""

    def __init__(self, store: CheckpointStore, root: str, backend: StateBackend) -> None:
        self._store = store
        self._root = root
        self._backend = backend
        self._pipeline = assemble({})
        self._operator, self._context = _opened(self._pipeline, backend)

    def take(self, users: Iterable[int]) -> None:
        self._operator.on_batch(0, batch_of([(key, key) for key in users]))

    def checkpoint(self, number: int, confirmed_id: CheckpointId) -> HeldPoint:
        """Takes a complete checkpoint without a notice: only the next barrier may confirm it."""
        checkpoint_id, location = CheckpointId(number), f"{self._root}/chk-{number}"
        cut = self._backend.cut_increment(checkpoint_id, confirmed_id)
        snapshot = _write(self._store, location, self._pipeline, self._context, cut, "incremental")
        manifest = msgspec.structs.replace(
            _manifest(self._pipeline, snapshot, "incremental"), checkpoint_id=checkpoint_id
        )
        self._store.publish(location, manifest)
        return HeldPoint(location, manifest)


@contextmanager
def held_run(store: CheckpointStore, root: str, backend_name: str) -> Iterator[HeldRun]:
    with _backend(backend_name, is_incremental=True) as backend:
        yield HeldRun(store, root, backend)


def held_in(restored: RestoredOperator, backend_name: str) -> dict[str, int]:
    """Restores an operator on a backend of that name; returns the number of rows of each state."""
    with _backend(backend_name, is_incremental=False) as backend:
        _, context = _opened(assemble({}), backend)
        for stored in restored.states:
            if stored.database is None or not backend.adopt(stored.database):
                backend.restore(stored.name, stored.rows)
        for state, batches in restored.operator_states:
            context.operator_state.restore(state, batches)
        cut = [*backend.cut(), *context.operator_state.cut()]
        return {state.name: sum(batch.num_rows for batch in state.batches) for state in cut}


@contextmanager
def _backend(name: str, *, is_incremental: bool) -> Iterator[StateBackend]:
    if name != "rocksdb":
        yield HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=is_incremental)
        return
    with rocksdb_backends(is_incremental=is_incremental) as backends:
        yield backends(ALL_GROUPS, MAX_PARALLELISM)


def _opened(pipeline: Pipeline, backend: StateBackend) -> tuple[Operator, OperatorContext]:
    context = OperatorContext(
        uid=STATES, subtask=0, parallelism=1, state=backend, collect=lambda _: None
    )
    operator = pipeline.operators[STATES]()
    operator.open(context, [SCHEMA])
    return operator, context


def _cut_of(form: str, backend: StateBackend, checkpoint_id: CheckpointId) -> list[FrozenState]:
    match form:
        case "canonical":
            return backend.cut()
        case "native":
            return backend.cut_native()
        case _:
            return backend.cut_increment(checkpoint_id, CheckpointId(checkpoint_id - 1))


def _write(
    store: CheckpointStore,
    location: str,
    pipeline: Pipeline,
    context: OperatorContext,
    states: list[FrozenState],
    form: str,
) -> SubtaskSnapshot:
    vertex = pipeline.graph.vertex(STATES)
    place = ChainPlace(RUN, Attempt(1), vertex, 0, 1, MAX_PARALLELISM)
    cut = SubtaskCut(
        place=place,
        operators=[OperatorCut(STATES, [*states, *context.operator_state.cut()], {})],
        positions=None,
        watermark_ms=None,
        key_times_ms=[],
    )
    overtaken = InFlightRecords(
        channel_id(pipeline.graph.vertex(NUMBERS).uid, 0, vertex.uid, 0, 0),
        False,
        [batch_of([(key, key) for key in range(5)])],
    )
    checkpoint_id = CheckpointId(int(location[-1]))
    written = SnapshotWriter(store).write(
        cut,
        checkpoint_id,
        location,
        open_format=form == "canonical",
        in_flight=[overtaken] if form in ("checkpoint", "incremental") else [],
    )
    return written.snapshot


def _manifest(pipeline: Pipeline, states: SubtaskSnapshot, form: str) -> Manifest:
    source = pipeline.graph.vertex(NUMBERS)
    read = SubtaskSnapshot(
        vertex=source.uid,
        subtask=0,
        operators=[
            msgspec.structs.replace(
                states.operators[0], uid=NUMBERS, states=[], positions=initial(0, 1).to_json()
            )
        ],
    )
    formats = {"canonical": SavepointFormat.CANONICAL, "native": SavepointFormat.NATIVE}
    return Manifest(
        format_version=FORMAT_VERSION,
        pipeline=FLOW_NAME,
        run_id=RUN,
        attempt=Attempt(1),
        checkpoint_id=CheckpointId(2),
        kind=CheckpointKind.SAVEPOINT if form in formats else CheckpointKind.CHECKPOINT,
        savepoint_format=formats.get(form),
        trigger_ms=0,
        completed_ms=1,
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
        ancestors=[],
        operator_ids={node.uid: "0" * 32 for node in pipeline.graph.nodes},
        subtasks=[read, states],
    )
