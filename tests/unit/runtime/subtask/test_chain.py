"""The calls in a subtask: main and side outputs have separate readers; a sink can be a head."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors import BlackHole
from pipelines.connectors.contract import Sink
from pipelines.domain.elements import Barrier, Records
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RunId, Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.operators.operator import Operator
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import OperatorFailed, described
from pipelines.runtime.subtask.snapshots.restoring import NOTHING
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.row_digest import digest_of
from pipelines.stream import BatchProcessFunction, Environment, Pipeline, ProcessContext, SideOutput
from tests.unit.runtime.fakes import SCHEMA, ListSource, batch_of, keys_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, MemorySink, RecordingOutput


def test_a_side_output_reaches_its_readers_and_the_main_output_its_own() -> None:
    main, side = MemorySink(), MemorySink()
    env = Environment()
    stream = env.source(ListSource([]), uid="in")
    node = env.add_operator("split", OddOnes, (stream.connection(("key",)),))
    split = stream.derived(node, None)
    split.sink(main, uid="main-out")
    odd = split.side_output("odd", uid="odd")
    odd.sink(side, uid="side-out")

    chain_of(env.build(), "split").on_batch(0, batch_of([(1, 0), (2, 0), (3, 0)]))

    assert (main.written, side.written) == ([2], [1, 3])
    assert (odd.schema, odd.time_column) == (SCHEMA, "at")


def test_counters_can_be_read_while_an_operator_counts_something_new() -> None:
    """A sampler reads them on its own thread, and a slot without samples looks idle."""
    env = Environment()
    env.source(ListSource([]), uid="in").sink(MemorySink(), uid="out")
    chain = chain_of(env.build(), "in")
    counters = chain.head_context().counters

    class Meanwhile(str):
        def __format__(self, form: str) -> str:
            counters["new"] = 1
            return str.__format__(self, form)

    counters.update({Meanwhile("read"): 2, "late": 3})

    assert chain.counters == {"in.read": 2, "in.late": 3, "out.records_written": 0}
    assert counters["new"] == 1


def test_a_side_output_can_enter_an_exchange() -> None:
    env = Environment()
    stream = env.source(ListSource([]), uid="in")
    split = stream.derived(env.add_operator("split", OddOnes, (stream.connection(("key",)),)), None)
    split.sink(MemorySink(), uid="main-out")
    split.side_output("odd", uid="odd").rebalance().sink(MemorySink(), uid="side-out")
    sent = RecordingOutput(ChannelId("to-side"))
    exchange = Exchange((), [sent], MAX_PARALLELISM, EdgeKind.REBALANCE)

    chain = chain_of(env.build(), "split", {Uid("odd"): [exchange]})
    chain.on_batch(0, batch_of([(1, 0), (2, 0)]))

    assert [keys_of(element.batch) for element in sent.sent] == [[1]]


def test_a_side_output_without_readers_is_dropped_harmlessly() -> None:
    main = MemorySink()
    env = Environment()
    stream = env.source(ListSource([]), uid="in")
    node = env.add_operator("split", OddOnes, (stream.connection(("key",)),))
    stream.derived(node, None).sink(main, uid="main-out")

    chain_of(env.build(), "split").on_batch(0, batch_of([(1, 0), (2, 0)]))

    assert main.written == [2]


def test_a_sink_behind_its_own_exchange_receives_the_rows() -> None:
    sink = MemorySink()
    env = Environment()
    env.source(ListSource([]), uid="in").rebalance().sink(sink, uid="out")

    chain_of(env.build(), "out").on_batch(0, batch_of([(1, 0)]))

    assert sink.written == [1]


@pytest.mark.parametrize(
    ("sink", "is_asked_for", "has_digest"),
    [(MemorySink(), True, True), (MemorySink(), False, False), (BlackHole(), True, False)],
)
def test_rows_of_a_sink_are_counted_and_digested_only_when_useful(
    sink: Sink, is_asked_for: bool, has_digest: bool
) -> None:
    env = Environment()
    env.source(ListSource([]), uid="in").rebalance().sink(sink, uid="out")
    chain = chain_of(env.build(), "out", digests_output=is_asked_for)
    rows = batch_of([(1, 0), (2, 0)])

    chain.on_batch(0, rows)
    (cut,) = chain.cut(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))

    (share,) = cut.outputs
    assert share.rows == 2
    assert share.digest == (f"{digest_of(rows):016x}" if has_digest else None)


class OddOnes(Operator):
    """Emits even keys on the main output and odd ones on a side output."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {"odd": SideOutput(inputs[0], "at")}

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        is_odd = pc.equal(pc.bit_wise_and(batch.column("key"), 1), 1)
        self.context.collect(batch.filter(pc.invert(is_odd)))
        self.context.collect_side("odd", batch.filter(is_odd))


def test_a_failure_names_the_offset_of_its_record_in_a_log_with_gaps() -> None:
    def fail_at_seven(row: dict[str, Any]) -> dict[str, Any]:
        if row["key"] == 7:
            raise ValueError("7 is bad")
        return row

    env = Environment()
    stream = env.source(ListSource([]), uid="in").map(fail_at_seven, SCHEMA, uid="map")
    stream.sink(MemorySink(), uid="out")
    origin = RecordOrigin(source=Uid("in"), subtask=0, split="a", first_offset=3, last_offset=90)

    with pytest.raises(OperatorFailed) as failed:
        chain_of(env.build(), "in").emit_from_source(
            batch_of([(1, 0), (7, 0), (3, 0)]), (origin,), np.array([3, 50, 90])
        )

    assert failed.value.origin == origin.at_offset(50)


def fail_at_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column("key").to_pylist():
        raise ValueError("7 is bad")
    return batch


PARTS = [
    [(1, 0), (2, 0)],
    [(3, 0), (7, 0), (4, 0)],
    [(5, 0)],
]
OF_PARTS = [
    RecordOrigin(source=Uid("in"), subtask=0, split="a", first_offset=10, last_offset=11),
    RecordOrigin(source=Uid("in"), subtask=0, split="b", first_offset=20, last_offset=22),
    RecordOrigin(source=Uid("in"), subtask=0, split="a", first_offset=30, last_offset=30),
]


@pytest.mark.parametrize(
    ("through", "found"),
    [
        ("source", [OF_PARTS[1].at_offset(21)]),  # row 1 of that part is that record
        ("operator", [OF_PARTS[1]]),  # its rows may not be the source's
    ],
)
def test_a_failure_in_a_joined_batch_names_the_part_that_holds_the_row(
    through: str, found: list[RecordOrigin]
) -> None:
    env = Environment()
    stream = env.source(ListSource([]), uid="in")
    if through == "operator":
        stream = stream.map_batches(lambda batch: batch, SCHEMA, uid="before")
    stream.rebalance().map_batches(fail_at_seven, SCHEMA, uid="f").sink(MemorySink(), uid="out")

    with pytest.raises(OperatorFailed) as failed:
        give_joined(chain_of(env.build(), "f"))

    assert list(failed.value.origins) == found
    assert failed.value.origin == found[0]
    assert failed.value.is_of_record


def test_every_part_is_a_candidate_if_the_failing_row_is_unknown() -> None:
    env = Environment()
    stream = env.source(ListSource([]), uid="in").rebalance()
    passed_on = stream.map_batches(lambda batch: batch, SCHEMA, uid="first")
    passed_on.sink(RefusingSink(), uid="out")

    with pytest.raises(OperatorFailed) as failed:
        give_joined(chain_of(env.build(), "first"))

    whole = msgspec.structs.replace(OF_PARTS[0], last_offset=30)
    assert list(failed.value.origins) == [whole, OF_PARTS[1]]
    assert failed.value.origin is None
    assert described(failed.value).candidates == (whole, OF_PARTS[1])


def test_output_of_a_joined_batch_originates_from_all_its_parts() -> None:
    output = RecordingOutput(ChannelId("out"))
    env = Environment()
    mapped = env.source(ListSource([]), uid="in").rebalance()
    mapped = mapped.map_batches(lambda batch: batch, SCHEMA, uid="first")
    mapped.key_by("key").process(Passing(), SCHEMA, uid="last").sink(MemorySink(), uid="out")
    exchanges = {Uid("first"): [Exchange(("key",), [output], MAX_PARALLELISM)]}

    give_joined(chain_of(env.build(), "first", exchanges), with_seven=False)

    (sent,) = output.sent
    assert isinstance(sent, Records)
    assert [origin.split for origin in sent.origins] == ["a", "b"]


def give_joined(chain: OperatorChain, *, with_seven: bool = True) -> None:
    rows = [[row for row in part if with_seven or row[0] != 7] for part in PARTS]
    batch = batch_of([row for part in rows for row in part])
    parts = [((origin,), len(part)) for origin, part in zip(OF_PARTS, rows, strict=True)]
    chain.on_batch(0, batch, parts)


class RefusingSink(MemorySink):
    def write(self, batch: pa.RecordBatch) -> None:
        raise ValueError("7 is bad")


class Passing(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        context.collect(batch)


def chain_of(
    pipeline: Pipeline,
    vertex: str,
    exchanges: dict[Uid, list[Exchange]] | None = None,
    *,
    digests_output: bool = True,
) -> OperatorChain:
    at = pipeline.graph.vertex(Uid(vertex))
    place = ChainPlace(RunId("run-1"), Attempt(1), at, 0, 1, MAX_PARALLELISM)
    restored = dict.fromkeys(at.nodes, NOTHING)
    return OperatorChain(
        pipeline=pipeline,
        place=place,
        backends=HashMapBackend,
        exchanges=exchanges or {},
        restored=restored,
        now_ms=lambda: 0,
        digests_output=digests_output,
    )
