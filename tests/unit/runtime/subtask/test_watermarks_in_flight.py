"""A snapshot does not keep a watermark that its barrier overtakes, and nothing is lost by that.

The sender sends the watermark again when it starts, so that the same windows become due. The
watermark may then come after records that it preceded. That can only make fewer of them late.
"""

from pathlib import Path

import pytest

from pipelines.channels.coalescing import Coalescing, InputOfChannel
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.domain.elements import Barrier, Records, Watermark
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import CheckpointId, Uid, channel_id
from pipelines.domain.key_groups import range_of
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.gate_alignment import AlignmentTiming, GateAlignment, handler_for
from pipelines.runtime.subtask.gate_feed import GateFeed
from pipelines.runtime.subtask.mailbox import Mailbox
from pipelines.runtime.subtask.snapshots.restoring import RestorePoint
from pipelines.stream import Environment, Pipeline, count, tumbling
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock, batch_of
from tests.unit.runtime.hosted import (
    MAX_PARALLELISM,
    OVERTAKING,
    MemorySink,
    RecordingReporter,
    obeyed,
    subtask_of,
)
from tests.unit.runtime.points import manifest_of, store_in

IN, MIDDLE, WINDOWS = Uid("in"), Uid("middle"), Uid("windows")
BARRIER = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, overtakes=True)


@pytest.mark.parametrize("behind", [[], [(2, 4)]], ids=["before it", "on both sides of it"])
def test_windows_due_by_a_watermark_in_flight_fire_after_a_restore(
    tmp_path: Path, behind: list[tuple[int, int]]
) -> None:
    """The source sends nothing new after the restore."""
    first = Line(tmp_path)
    first.source.send(Records(batch_of([(1, 3)])))
    first.source.send(Watermark(9))
    if behind:
        first.source.send(Records(batch_of(behind)))
    first.middle.consume()
    first.source.send(BARRIER)
    first.middle.consume()
    first.windows.consume_one()
    handles = first.windows.reporter.snapshots[1].in_flight
    assert sum(handle.rows for handle in handles) == 1 + len(behind)
    assert first.windows.reporter.snapshots[1].operators[0].watermark_ms is None

    second = Line(tmp_path, first.point())
    second.windows.consume()
    assert second.sink.written == []
    second.middle.consume()
    second.windows.consume()

    assert second.windows.feed.watermark_ms() == 9
    assert second.sink.written == [1, *(key for key, _ in behind)]
    assert "late_records" not in second.windows.subtask.chain.counters


class Stage:
    """The only subtask of one vertex, fed by one channel."""

    def __init__(
        self,
        root: Path,
        pipeline: Pipeline,
        uid: Uid,
        upstream: Uid,
        outputs: dict[Uid, list[Exchange]],
        point: RestorePoint | None,
    ) -> None:
        self.reporter = RecordingReporter(root)
        vertex = pipeline.graph.vertex(uid)
        channel, clock = channel_id(upstream, 0, uid, 0, 0), ManualClock()
        self.input, gate = LocalOutput(channel), Gate([channel])
        self.input.on_gate(gate)
        handler = handler_for(OVERTAKING, vertex, {channel: 0})
        alignment = GateAlignment(gate, handler, OVERTAKING, AlignmentTiming(clock))
        whole = range_of(0, 1, MAX_PARALLELISM)
        restored = {n: point.share_of(n, 0, 1, whole) for n in vertex.nodes} if point else None
        watermark_ms = restored[uid].watermark_ms if restored else None
        in_flight = point.in_flight_into(vertex, 0, 1) if point else ()
        coalescing = Coalescing({channel: InputOfChannel(0)}, max_rows=1)
        self.feed = GateFeed(gate, coalescing, alignment, watermark_ms, in_flight)
        self.subtask = subtask_of(
            pipeline,
            uid,
            self.feed,
            self.reporter,
            clock,
            outputs,
            Mailbox(),
            OVERTAKING,
            restored,
        )

    def consume_one(self) -> bool:
        attended = self.feed.attend()
        return obeyed(self.subtask, self.feed.advance() if attended is None else attended)

    def consume(self) -> None:
        while self.consume_one():
            continue


class Line:
    """A vertex that passes records on, and a vertex with windows behind it."""

    def __init__(self, root: Path, point: RestorePoint | None = None) -> None:
        self._root = root
        self.sink = MemorySink()
        env = Environment(max_parallelism=MAX_PARALLELISM)
        passed = (
            env.source(ListSource([]), uid=IN)
            .rebalance()
            .map_batches(lambda batch: batch, SCHEMA, uid=MIDDLE)
        )
        windows = passed.key_by("key").window(tumbling(milliseconds=10))
        windows.aggregate(n=count(), uid=WINDOWS).sink(self.sink, uid="out")
        pipeline = env.build()
        self.windows = Stage(root / "windows", pipeline, WINDOWS, MIDDLE, {}, point)
        exchange = Exchange(("key",), [self.windows.input], MAX_PARALLELISM, EdgeKind.HASH)
        self.middle = Stage(root / "middle", pipeline, MIDDLE, IN, {MIDDLE: [exchange]}, point)
        self.source = self.middle.input

    def point(self) -> RestorePoint:
        subtasks = [stage.reporter.snapshots[1] for stage in (self.middle, self.windows)]
        manifest = manifest_of([], subtasks=subtasks, parallelism=1)
        location = str(self.windows.reporter.location_of(BARRIER.checkpoint_id))
        return RestorePoint(store_in(self._root), location, manifest)
