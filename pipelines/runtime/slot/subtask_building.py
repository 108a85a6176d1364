"""Builds one subtask: its chain, gate, exchanges, feed, restored state, and wires for mode ACKED.

`deployment` builds the other parts of a slot; the settings explain the modes.

In mode ACKED, channels lead from every subtask to every acker, and from the ackers back to the
spouts. Ackers are assigned to slots in turn, as Storm spreads executors over workers. A spout is a
subtask of a source; spouts are numbered source by source, subtask by subtask.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.channels.coalescing import Coalescing, InputOfChannel
from pipelines.channels.credit import Debloating
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.connectors.files.quarantine import ReplayedQuarantine
from pipelines.connectors.positions import Beginning
from pipelines.domain.clock import Clock
from pipelines.domain.faults import FaultPoint
from pipelines.domain.graph import JobGraph, Vertex
from pipelines.domain.ids import Attempt, ChannelId, Uid, channel_id
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.domain.settings import AckingOptions, CheckpointingMode, InputOptions
from pipelines.domain.snapshots import FileHandle
from pipelines.protocol.acking import Acker, Spout
from pipelines.runtime.clocks import ProcessingTime, thread_processor_ms
from pipelines.runtime.control import Deploy
from pipelines.runtime.subtask.acking.acker_task import (
    AckerTask,
    channel_to_acker,
    channel_to_spout,
)
from pipelines.runtime.subtask.acking.anchoring import Anchoring
from pipelines.runtime.subtask.chains.chain import OperatorChain, Quarantines
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.chains.exchange import Exchange, KeySampler
from pipelines.runtime.subtask.feed import Feed
from pipelines.runtime.subtask.gate_alignment import AlignmentTiming, GateAlignment, handler_for
from pipelines.runtime.subtask.gate_feed import GateFeed
from pipelines.runtime.subtask.mailbox import Mailbox
from pipelines.runtime.subtask.snapshots.restoring import NOTHING, RestoredOperator, RestorePoint
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter
from pipelines.runtime.subtask.snapshots.upload_threads import never
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.reserving_reader import ReplayingReader, ReservingReader
from pipelines.runtime.subtask.sources.source_feed import SourceFeed
from pipelines.runtime.subtask.sources.source_reader import SourceReader
from pipelines.runtime.subtask.sources.split_screen import SplitScreen
from pipelines.runtime.subtask.sources.spout_reader import SpoutReader
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter
from pipelines.runtime.subtask.work_pieces import WorkPieces
from pipelines.state.backend import BackendFactory
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class AckingWires:
    """The wires of the slot that hosts subtask `subtask` of every vertex."""

    options: AckingOptions
    graph: JobGraph
    parallelism: int  # the run's
    attempt: Attempt
    subtask: int
    network: SlotNetwork
    clock: Clock

    def anchoring(self, vertex: Vertex, mailbox: Mailbox) -> Anchoring | None:
        """Returns the anchoring of the subtask of `vertex`, or None if there are no ackers."""
        if not self.options.acker_count:
            return None
        outputs = [
            self.network.output(
                channel_to_acker(vertex.uid, self.subtask, acker), self._slot_of(acker)
            )
            for acker in range(self.options.acker_count)
        ]
        for output in outputs:
            output.on_available(mailbox.wake)
        # No two subtasks draw the same ids, and no attempt draws those of an older one.
        seed = [self.attempt, self.graph.vertices.index(vertex), self.subtask]
        return Anchoring(outputs, np.random.default_rng(seed))

    def spout(self, vertex: Vertex, reader: SourceReader, mailbox: Mailbox) -> SpoutReader:
        number = self._sources().index(vertex) * self._slot_count + self.subtask
        spout = Spout(number, in_flight_max=self.options.pending_max)
        channels = [
            channel_to_spout(acker, vertex.uid, self.subtask)
            for acker in range(self.options.acker_count)
        ]
        verdicts = self._gate(channels) if channels else None
        if verdicts is not None:
            verdicts.on_available(mailbox.wake)
        return SpoutReader(reader, spout, self.options, verdicts, self.clock)

    def ackers(self) -> list[AckerTask]:
        """Builds the ackers that this slot hosts."""
        indices = range(self.subtask, self.options.acker_count, self._slot_count)
        return [self._acker(index) for index in indices]

    def _acker(self, index: int) -> AckerTask:
        channels = [
            channel_to_acker(vertex.uid, subtask, index)
            for vertex in self.graph.vertices
            for subtask in range(vertex.parallelism or self.parallelism)
        ]
        gate = self._gate(channels)
        spouts = {
            number * self._slot_count + subtask: self.network.output(
                channel_to_spout(index, source.uid, subtask), subtask
            )
            for number, source in enumerate(self._sources())
            for subtask in range(source.parallelism or self.parallelism)
        }
        acker = Acker(index=index, count=self.options.acker_count)
        timeout_ms = self.options.timeout_ms
        return AckerTask(
            name=f"acker[{index}]",
            acker=acker,
            gate=gate,
            channel_count=len(channels),
            spouts=spouts,
            timeout_ms=timeout_ms,
            clock=self.clock,
        )

    def _sources(self) -> list[Vertex]:
        return [vertex for vertex in self.graph.vertices if not vertex.inputs]

    def _slot_of(self, acker: int) -> int:
        return acker % self._slot_count

    @property
    def _slot_count(self) -> int:
        return self.graph.slot_count(self.parallelism)

    def _gate(self, channels: list[ChannelId]) -> Gate:
        gate = Gate(channels)
        self.network.register_gate(gate)
        return gate


@dataclass(frozen=True, slots=True)
class BuiltSubtask:
    subtask: Subtask
    feed: Feed
    gate: Gate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskBuilder:
    """Builds, for each vertex that has one, the subtask with this slot's index."""

    message: Deploy
    pipeline: Pipeline
    store: CheckpointStore
    point: RestorePoint | None
    attempt: Attempt
    subtask: int
    network: SlotNetwork
    reporter: SubtaskReporter
    clock: Clock
    backends: BackendFactory
    wires: AckingWires | None
    uploads_starve: Callable[[], bool] = never
    beginning: Beginning = field(default_factory=Beginning)

    def build(self, vertex: Vertex, uploads: Executor) -> BuiltSubtask:
        restored = {uid: self._restored(vertex, uid) for uid in vertex.nodes}
        mailbox = Mailbox()
        chain = OperatorChain(
            pipeline=self.pipeline,
            place=self._place(vertex),
            backends=self.backends,
            exchanges={uid: self._exchanges(vertex, uid, mailbox) for uid in vertex.nodes},
            restored=restored,
            now_ms=ProcessingTime(self.clock).now_ms,
            anchoring=None if self.wires is None else self.wires.anchoring(vertex, mailbox),
            quarantines=self._quarantines(),
            keeps_state=self.wires is None,
            digests_output=self.message.digests_output,
            wake=mailbox.wake,
        )
        self.reporter.reach(FaultPoint.OPENED)
        gate = self._gate(vertex, mailbox)
        screen = self._screen(vertex, chain)
        feed = self._feed(vertex, gate, restored[vertex.uid], mailbox, screen)
        subtask = Subtask(
            place=self._place(vertex),
            chain=chain,
            feed=feed,
            snapshots=SnapshotWriter(self.store),
            uploads=uploads,
            uploads_starve=self.uploads_starve,
            reporter=self.reporter,
            clock=self.clock,
            mailbox=mailbox,
            barriers=self.message.barriers,
        )
        return BuiltSubtask(subtask, feed, gate)

    def _quarantines(self) -> Quarantines:
        message = self.message
        return Quarantines(message.quarantine, message.pipeline, message.isolation)

    def _screen(self, vertex: Vertex, chain: OperatorChain) -> SplitScreen | None:
        """Returns None if no record of the source is suspected."""
        isolation = self.message.isolation
        if chain.quarantine is None or not isolation.concerns(vertex.uid):
            return None
        return SplitScreen(
            vertex.uid, self.pipeline.sources[vertex.uid].schema, isolation, chain.quarantine
        )

    def _place(self, vertex: Vertex) -> ChainPlace:
        message = self.message
        return ChainPlace(
            message.run_id,
            self.attempt,
            vertex,
            self.subtask,
            self._parallelism(vertex),
            message.max_parallelism,
        )

    def _parallelism(self, vertex: Vertex) -> int:
        return vertex.parallelism or self.message.parallelism

    def files_of(self, vertex: Vertex) -> Iterator[FileHandle]:
        """Yields the files with the state that `build` restores."""
        if self.point is not None:
            for uid in vertex.nodes:
                yield from self.point.files_of(uid, *self._share(vertex))

    def _restored(self, vertex: Vertex, uid: Uid) -> RestoredOperator:
        return NOTHING if self.point is None else self.point.share_of(uid, *self._share(vertex))

    def _share(self, vertex: Vertex) -> tuple[int, int, KeyGroupRange]:
        parallelism, maximum = self._parallelism(vertex), self.message.max_parallelism
        return self.subtask, parallelism, range_of(self.subtask, parallelism, maximum)

    def _in_flight(self, vertex: Vertex) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self.point is None:
            return iter(())
        return self.point.in_flight_into(vertex, self.subtask, self._parallelism(vertex))

    def _exchanges(self, vertex: Vertex, uid: Uid, mailbox: Mailbox) -> list[Exchange]:
        graph, parallelism = self.pipeline.graph, self.message.parallelism
        return [
            Exchange(
                edge.hash_by,
                [
                    self._output(
                        channel_id(
                            vertex.uid, self.subtask, edge.downstream_vertex, edge.port, target
                        ),
                        target,
                        mailbox,
                    )
                    for target in edge.kind.peers(
                        self.subtask, graph.parallelism_of(edge.downstream_vertex, parallelism)
                    )
                ],
                self.message.max_parallelism,
                edge.kind,
                is_anchored=edge.is_anchored,
                sampler=self._sampler(edge.downstream_vertex, edge.hash_by),
            )
            for edge in graph.outputs_of(uid)
        ]

    def _sampler(self, vertex: Uid, hash_by: tuple[str, ...]) -> KeySampler | None:
        """Returns None if records go there without a key."""
        if not hash_by:
            return None
        message = self.message
        return KeySampler(
            vertex,
            hash_by,
            message.max_parallelism,
            self.clock.monotonic_ms,
            shows_keys=message.shows_failed_records,
        )

    def _output(self, channel: ChannelId, target: int, mailbox: Mailbox) -> Output:
        output = self.network.output(channel, target)
        output.on_available(mailbox.wake)
        return output

    def _gate(self, vertex: Vertex, mailbox: Mailbox) -> Gate | None:
        ports = dict(self._ports(vertex))
        if not ports:
            return None
        inputs = self.message.inputs
        gate = Gate(list(ports), debloating=_debloating(inputs), joins=inputs.coalesced_rows > 1)
        gate.on_available(mailbox.wake)
        self.network.register_gate(gate)
        return gate

    def _ports(self, vertex: Vertex) -> Iterator[tuple[ChannelId, int]]:
        graph, parallelism = self.pipeline.graph, self.message.parallelism
        for edge in vertex.inputs:
            upstream = graph.parallelism_of(edge.upstream_vertex, parallelism)
            for source in edge.kind.peers(self.subtask, upstream):
                channel = channel_id(
                    edge.upstream_vertex, source, vertex.uid, edge.port, self.subtask
                )
                yield channel, edge.port

    def _feed(
        self,
        vertex: Vertex,
        gate: Gate | None,
        restored: RestoredOperator,
        mailbox: Mailbox,
        screen: SplitScreen | None,
    ) -> Feed:
        if gate is not None:
            ports = dict(self._ports(vertex))
            barriers = self.message.barriers
            handler = handler_for(barriers, vertex, ports)
            alignment = GateAlignment(gate, handler, barriers, AlignmentTiming(self.clock))
            in_flight = self._in_flight(vertex)
            pieces = WorkPieces(thread_processor_ms, self.message.inputs.longest_work_ms)
            return GateFeed(
                gate, self._coalescing(vertex), alignment, restored.watermark_ms, in_flight, pieces
            )
        return self._source_feed(vertex, restored, mailbox, screen)

    def _coalescing(self, vertex: Vertex) -> Coalescing:
        inputs, isolation = self.message.inputs, self.message.isolation
        times = {edge.port: edge.time_column for edge in vertex.inputs}
        return Coalescing(
            {c: InputOfChannel(port, times[port]) for c, port in self._ports(vertex)},
            inputs.coalesced_rows,
            inputs.coalescing_wait_ms,
            isolation.keeps_apart,
        )

    def _source_feed(
        self,
        vertex: Vertex,
        restored: RestoredOperator,
        mailbox: Mailbox,
        screen: SplitScreen | None,
    ) -> SourceFeed:
        reader = DirectReader(
            source=self.pipeline.sources[vertex.uid],
            restored=restored.positions,
            subtask=self.subtask,
            parallelism=self._parallelism(vertex),
            clock=self.clock,
            event_hours_per_s=self.pipeline.pace,
            strategy=self.pipeline.watermarks.get(vertex.uid),
            restored_watermark_ms=restored.watermark_ms,
            screen=screen,
            beginning=self.beginning.splits.get(vertex.uid),
        )
        progress_reporter, pending = reader.progress_reporter, reader.pending
        quarantine = self._quarantine_reader(vertex, restored, screen)
        handing_out = self._handing_out(vertex, reader, quarantine, mailbox)
        return SourceFeed(
            self._place(vertex), handing_out, self.clock, progress_reporter, quarantine, pending
        )

    def _handing_out(
        self,
        vertex: Vertex,
        reader: SourceReader,
        quarantine: SourceReader | None,
        mailbox: Mailbox,
    ) -> SourceReader:
        """Returns the reader that hands out the records of `reader` as the mode requires."""
        barriers = self.message.barriers
        if self.wires is not None:
            return self.wires.spout(vertex, reader, mailbox)
        if barriers.mode is CheckpointingMode.AT_MOST_ONCE:
            return ReservingReader(reader, barriers.read_ahead_bytes)
        return reader if quarantine is None else ReplayingReader(reader, quarantine)

    def _quarantine_reader(
        self, vertex: Vertex, restored: RestoredOperator, screen: SplitScreen | None
    ) -> DirectReader | None:
        """Returns None if no record of the source's quarantine was or will be read again."""
        uid = vertex.uid
        message, source = self.message, self.pipeline.sources[uid]
        looks = uid in message.replayed_sources
        if not looks and not restored.replayed:
            return None
        return DirectReader(
            source=ReplayedQuarantine.of(
                message.quarantine, uid, source, message.run_id, looks=looks
            ),
            restored=restored.replayed,
            subtask=self.subtask,
            parallelism=self._parallelism(vertex),
            clock=self.clock,
            event_hours_per_s=None,
            screen=screen,
        )


def _debloating(inputs: InputOptions) -> Debloating | None:
    if not inputs.debloats_channels:
        return None
    return Debloating(
        target_ms=inputs.debloat_target_ms,
        period_ms=inputs.debloat_period_ms,
        samples=inputs.debloat_samples,
        threshold_percent=inputs.debloat_threshold_percent,
    )
