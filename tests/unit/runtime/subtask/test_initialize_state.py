"""Functions see restored state before the first record, so a cut in between finds it in order."""

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, RunId, Uid
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.operator_failure import OperatorFailed
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.operator_states import OperatorListState
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
)
from tests.unit.runtime.fakes import SCHEMA, ListSource
from tests.unit.runtime.hosted import MAX_PARALLELISM, MemorySink

SHARED = ListStateDescriptor("shared", pa.int64())
SIX = pa.RecordBatch.from_pydict({"shared": list(range(6))})


class OfBatches(BatchProcessFunction):
    def open(self, context: ProcessContext) -> None:
        self._shared = context.get_operator_union_list_state(SHARED)

    def initialize_state(self, context: ProcessContext) -> None:
        keep_own(self._shared, context)


class OfRows(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        self._shared = runtime.get_operator_union_list_state(SHARED)

    def initialize_state(self, runtime: RuntimeContext) -> None:
        keep_own(self._shared, runtime)


class Failing(BatchProcessFunction):
    def initialize_state(self, context: ProcessContext) -> None:
        raise Rejected("This state is too old.")


@pytest.mark.parametrize("function", [OfBatches(), OfRows()], ids=["batches", "rows"])
def test_a_union_list_does_not_grow_over_restores_without_new_records(
    function: BatchProcessFunction | KeyedProcessFunction,
) -> None:
    elements = [SIX]

    for parallelism in (2, 3, 1, 4):
        chains = [chain_of(function, elements, i, parallelism) for i in range(parallelism)]
        elements = [batch for chain in chains for batch in held_by(chain)]

        assert sorted(n for each in elements for n in each.column(0).to_pylist()) == [*range(6)]


def test_an_error_in_initialize_state_is_a_failure_of_its_operator() -> None:
    with pytest.raises(OperatorFailed, match="too old") as failed:
        chain_of(Failing(), [], 0, 1)

    assert failed.value.operator == "function"


def chain_of(
    function: BatchProcessFunction | KeyedProcessFunction,
    elements: list[pa.RecordBatch],
    subtask: int,
    parallelism: int,
) -> OperatorChain:
    """Returns one subtask's chain, with the elements of all subtasks restored."""
    env = Environment()
    keyed = env.source(ListSource([]), uid="in").key_by("key")
    keyed.process(function, SCHEMA, uid="function").sink(MemorySink(), uid="out")
    pipeline = env.build()
    vertex = pipeline.graph.vertex(Uid("function"))
    restored = RestoredOperator(
        operator_states=(("operator.shared", elements),) if elements else ()
    )
    place = ChainPlace(RunId("run-1"), Attempt(1), vertex, subtask, parallelism, MAX_PARALLELISM)
    shares = dict.fromkeys(vertex.nodes, RestoredOperator()) | {Uid("function"): restored}
    return OperatorChain(
        pipeline=pipeline,
        place=place,
        backends=HashMapBackend,
        exchanges={},
        restored=shares,
        now_ms=lambda: 0,
        digests_output=False,
    )


def held_by(chain: OperatorChain) -> list[pa.RecordBatch]:
    """Returns the batches of the list in a cut taken now."""
    (shared,) = chain.head_context().operator_state.cut()
    return list(shared.batches)


def keep_own(shared: OperatorListState, context: ProcessContext | RuntimeContext) -> None:
    own = range(context.subtask, len(shared), context.parallelism)
    shared.update(shared.get().take(pa.array(own, pa.int64())))
