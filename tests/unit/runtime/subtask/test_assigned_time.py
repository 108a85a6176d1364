"""An operator that assigns event time: which nodes see which time, and what a snapshot keeps."""

from pathlib import Path

import pyarrow as pa

from pipelines.domain.elements import Barrier, Element, Records, Watermark, WatermarkStatus
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.snapshots.restoring import NOTHING, RestoredOperator, RestorePoint
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment
from tests.unit.runtime.fakes import ListSource, batch_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, MemorySink, RecordingOutput
from tests.unit.runtime.points import manifest_of, store_in

IN, ASSIGNED, BEHIND, BESIDE = Uid("in"), Uid("assigned"), Uid("behind"), Uid("beside")
IDLE, ACTIVE = WatermarkStatus(is_idle=True), WatermarkStatus(is_idle=False)
BARRIER = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)


class Watching(Operator):
    """Passes records on and remembers the watermarks that it has seen."""

    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self.restored_ms = context.restored_watermark_ms

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self.context.collect(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._seen.append(timestamp_ms)


class Line:
    """in -> assigned -> behind -> (exchange), and in -> beside -> (exchange), in one subtask."""

    def __init__(self, restored: dict[Uid, RestoredOperator] | None = None) -> None:
        self.behind: list[int] = []
        self.beside: list[int] = []
        self.now_ms = 0
        env = Environment(max_parallelism=MAX_PARALLELISM)
        stream = env.source(ListSource([]), uid=IN)
        assigned = stream.assign_timestamps("at", uid=ASSIGNED)
        self.outputs = {BEHIND: _output(), BESIDE: _output()}
        for uid, before, seen in (
            (BEHIND, assigned, self.behind),
            (BESIDE, stream, self.beside),
        ):
            node = env.add_operator(uid, lambda seen=seen: Watching(seen), (before.connection(),))
            before.derived(node, "at").rebalance().sink(MemorySink(), uid=f"{uid}-out")
        vertex = env.build().graph.vertex(IN)
        self.place = ChainPlace(RunId("run-1"), Attempt(1), vertex, 0, 1, MAX_PARALLELISM)
        self.chain = OperatorChain(
            pipeline=env.build(),
            place=self.place,
            backends=HashMapBackend,
            exchanges={
                uid: [Exchange((), [output], MAX_PARALLELISM, EdgeKind.REBALANCE)]
                for uid, output in self.outputs.items()
            },
            restored=restored or dict.fromkeys(vertex.nodes, NOTHING),
            now_ms=lambda: self.now_ms,
        )

    def sent(self, uid: Uid) -> list[Element]:
        return [each for each in self.outputs[uid].sent if not isinstance(each, Records)]


def _output() -> RecordingOutput:
    return RecordingOutput(ChannelId("out"))


def test_downstream_sees_the_assigned_time_and_siblings_see_the_input_time() -> None:
    line = Line()

    line.chain.emit_from_source(batch_of([(1, 7), (2, 9)]))
    line.chain.on_watermark(3)
    line.chain.emit_from_source(batch_of([(1, 8), (2, 12)]))

    assert (line.behind, line.beside) == ([8, 11], [3])
    assert line.sent(BEHIND) == [Watermark(8), Watermark(11)]
    assert line.sent(BESIDE) == [Watermark(3)]
    in_order = [type(each) for each in line.outputs[BEHIND].sent]
    assert in_order == [Records, Watermark, Records, Watermark]


def test_idleness_and_the_end_of_event_time_pass_through() -> None:
    line = Line()

    line.chain.on_event_time([IDLE, ACTIVE, Watermark(MAX_WATERMARK_MS)])

    assert (line.behind, line.beside) == ([MAX_WATERMARK_MS], [MAX_WATERMARK_MS])
    assert line.sent(BEHIND) == line.sent(BESIDE) == [IDLE, ACTIVE, Watermark(MAX_WATERMARK_MS)]


def test_barriers_reach_all_outputs_but_input_watermarks_skip_assigned_ones() -> None:
    line = Line()

    line.chain.broadcast(Watermark(5))
    line.chain.broadcast(BARRIER)

    assert line.sent(BEHIND) == [BARRIER]
    assert line.sent(BESIDE) == [Watermark(5), BARRIER]


def test_a_snapshot_keeps_the_assigned_time_and_a_restore_sends_it_again(tmp_path: Path) -> None:
    """It does so even without new records, as the watermark may have been in flight at the cut."""
    first = Line()
    first.chain.emit_from_source(batch_of([(1, 7), (2, 9)]))
    point = point_of(tmp_path, first, watermark_ms=3)

    whole = range_of(0, 1, MAX_PARALLELISM)
    restored = {uid: point.share_of(uid, 0, 1, whole) for uid in first.place.vertex.nodes}
    second = Line(restored)
    assert second.chain.awaits_processing_time
    second.chain.on_processing_time()
    second.chain.emit_from_source(batch_of([(1, 4), (2, 20)]))

    assert restored[IN].watermark_ms == 3
    assert restored[ASSIGNED].assigned_ms == 8
    assert second.sent(BEHIND) == [Watermark(8), Watermark(19)]
    assert second.sent(BESIDE) == []
    again = point_of(tmp_path / "again", Line(restored), watermark_ms=3)
    assert again.share_of(ASSIGNED, 0, 1, whole).assigned_ms == 8


def point_of(root: Path, line: Line, watermark_ms: int) -> RestorePoint:
    cut = SubtaskCut(
        place=line.place,
        operators=line.chain.cut(BARRIER),
        positions=None,
        watermark_ms=watermark_ms,
        key_times_ms=[],
    )
    location = str(root / "chk-1")
    store = store_in(root)
    written = SnapshotWriter(store).write(cut, CheckpointId(1), location, open_format=False)
    manifest = manifest_of([], subtasks=[written.snapshot], parallelism=1)
    return RestorePoint(store, location, manifest)
