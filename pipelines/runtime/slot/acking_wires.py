"""Wires mode ACKED in one slot: channels from every subtask to every acker, and back to spouts.

Also decides which slot hosts which acker: in turn, as Storm spreads executors over workers. A spout
is a subtask of a source; spouts are numbered source by source, subtask by subtask.
"""

from dataclasses import dataclass

import numpy as np

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.domain.clock import Clock
from pipelines.domain.graph import JobGraph, Vertex
from pipelines.domain.ids import Attempt, ChannelId
from pipelines.domain.settings import AckingOptions
from pipelines.protocol.acking import Acker
from pipelines.protocol.spout import Spout
from pipelines.runtime.subtask.acking.acker_task import (
    AckerTask,
    channel_to_acker,
    channel_to_spout,
)
from pipelines.runtime.subtask.acking.anchoring import Anchoring
from pipelines.runtime.subtask.mailbox import Mailbox
from pipelines.runtime.subtask.sources.source_reader import SourceReader
from pipelines.runtime.subtask.sources.spout_reader import SpoutReader


@dataclass(frozen=True, slots=True, kw_only=True)
class AckingWires:
    """The wires of the slot that hosts subtask `subtask` of every vertex."""

    options: AckingOptions
    graph: JobGraph
    parallelism: int
    attempt: Attempt
    subtask: int
    network: SlotNetwork
    clock: Clock

    def anchoring(self, vertex: Vertex, mailbox: Mailbox) -> Anchoring | None:
        """For the subtask of `vertex`; None: there are no ackers."""
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
        # No two subtasks draw the same ids, and no attempt those of an older one.
        seed = [self.attempt, self.graph.vertices.index(vertex), self.subtask]
        return Anchoring(outputs, np.random.default_rng(seed))

    def spout(self, vertex: Vertex, reader: SourceReader, mailbox: Mailbox) -> SpoutReader:
        number = self._sources().index(vertex) * self.parallelism + self.subtask
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
        """The ackers that this slot hosts."""
        indices = range(self.subtask, self.options.acker_count, self.parallelism)
        return [self._acker(index) for index in indices]

    def _acker(self, index: int) -> AckerTask:
        channels = [
            channel_to_acker(vertex.uid, subtask, index)
            for vertex in self.graph.vertices
            for subtask in range(self.parallelism)
        ]
        gate = self._gate(channels)
        spouts = {
            number * self.parallelism + subtask: self.network.output(
                channel_to_spout(index, source.uid, subtask), subtask
            )
            for number, source in enumerate(self._sources())
            for subtask in range(self.parallelism)
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
        return acker % self.parallelism

    def _gate(self, channels: list[ChannelId]) -> Gate:
        gate = Gate(channels)
        self.network.register_gate(gate)
        return gate
